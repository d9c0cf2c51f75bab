"""The agent's time per step over the length of an episode, as a table and a small plot. Every text is escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from vlnbench.evaluation.costs import StepCost
from vlnbench.report.tables import scrolling

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 200, 48, 34, 12, 12


def steps_section(costs: Sequence[StepCost]) -> str:
    """Plot and table of one run; the parts of its episodes are those of `costs.PARTS`."""
    rows = "".join(
        f'<tr><th scope="row">{escape(cost.part)}</th><td>{cost.episodes:,}</td><td>{cost.steps:,}</td>'
        f"<td>{_ms(cost.ms)}</td><td>{_ms(cost.low)} to {_ms(cost.high)}</td></tr>"
        for cost in costs
    )
    heads = "".join(
        f'<th scope="col">{head}</th>' for head in ("episodes", "steps", "ms per step", "8 in 10 episodes")
    )
    table = (
        f'<table class="figures steps"><thead><tr><th scope="col">steps</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )
    return (
        '<p class="note">What the agent took for a step, by the number of the step in its episode: it grows where '
        "the agent carries a longer history. Time of a call is divided among the episodes and the actions that it "
        "decides on, and depends on the machine and on what else ran there. The line is the mean over the steps; "
        "between the edges of the band lie the means of eight in ten episodes.</p>"
        f"{_plot(costs)}{scrolling('Time of the agent per step', table)}"
    )


def _plot(costs: Sequence[StepCost]) -> str:
    """Milliseconds over the steps, one level for each part of the episodes."""
    ends = _ends(costs)
    top = _nice(max(cost.high for cost in costs))

    def x(step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / ends[-1]

    def y(ms: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - ms / top)

    parts = list(zip([0, *ends[:-1]], ends, costs, strict=True))
    grid = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        for value in (0, top / 2, top)
    )
    ticks = "".join(
        f'<text x="{x(end):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{end}</text>'
        for end in _told(ends, 36 * ends[-1] / (_WIDTH - _LEFT - _RIGHT))
    )
    band = "".join(
        f'<rect class="band" x="{x(first):.1f}" width="{x(last) - x(first):.1f}" y="{y(cost.high):.1f}" '
        f'height="{y(cost.low) - y(cost.high):.1f}"/>'
        for first, last, cost in parts
    )
    line = " ".join(f"{x(end):.1f},{y(cost.ms):.1f}" for first, last, cost in parts for end in (first, last))
    said = escape("; ".join(f"steps {cost.part}: {_ms(cost.ms)} ms" for cost in costs), quote=True)
    return (
        f'<svg class="chart steps" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{said}">'
        f'{grid}{ticks}{band}<polyline class="line" points="{line}"/>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 4}">number of the step</text>'
        f'<text x="{_LEFT + 6}" y="{_TOP + 10}">ms</text></svg>'
    )


def _ends(costs: Sequence[StepCost]) -> list[int]:
    """Last step of every part; the last part ends where the plot does."""
    ends: list[int] = []
    for cost in costs:
        _, _, last = cost.part.partition("-")
        ends.append(int(last) if last else round(1.2 * ends[-1]) if ends else cost.steps)
    return ends


def _told(ends: Sequence[int], apart: float) -> list[int]:
    """Those that have room beneath the axis, beginning with the last."""
    told: list[int] = []
    for end in reversed(ends):
        if not told or told[-1] - end >= apart:
            told.append(end)
    return told


def _nice(value: float) -> float:
    """1, 2 or 5 times a power of ten, not below a value; 1 for 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9))


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
