"""Plots of a matrix: SR against memory with the Pareto front, the effect of every axis, what trainings cost."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vlnbench.matrix.statistics.contrasts import SEED
from vlnbench.matrix.statistics.effects import Effect, Row, findings, mean, metric, over_seeds, spread

GB = 10**9
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Told apart by color-blind readers (Okabe and Ito)."""
MARKERS = "os^D"
"""For more groups than colors."""
ALIKE, APART = 0.01, 0.02
"""Of the axis: settings whose memory differs by less are drawn side by side, so far from each other. Where that of
all differs by less than this part of it, there is nothing to plot."""
MEASURED = "peak VRAM allocated (GB)"
PLANNED = "planned VRAM (GB): no GPU, not measured"
HOST = "peak host memory of training (GB): no GPU, no plan"
CPU = "CPU time per window of the first process (ms)"
WALL = "time per window (ms)"
MEMORY = {
    "allocated": MEASURED,
    "planned": "planned VRAM (GB), not measured",
    "host": "host memory of the largest process (GB)",
}
NAME = 0.04
"""Of the axis of SR: references closer than this have their names on either side of their lines."""
_PLACES = ((1.0, -2, "right"), (0.0, 2, "left"), (0.5, 0, "center"))
"""Of these names: of the axis of memory, with an indent in points."""
LEAST_SPAN = 0.2
"""Of the memory at hand, what the axis spans at least: half a percent must not look like a difference."""
FIRST, OTHER = "#7f7f7f", "#0072b2"


@dataclass(frozen=True)
class Point:
    """A setting in a plot: number in the key, memory in GB, mean and limits in percent; `bar`: which limits."""

    number: int
    name: str
    group: str
    memory: float
    value: float
    low: float | None
    high: float | None
    bar: str


def write_plots(document: Mapping[str, Any], folder: Path) -> list[str]:
    """Write every plot that there are values for, as PNG and SVG; returns the files' names."""
    figures = {
        "sr_vs_vram": memory_figure(document),
        "effects": effects_figure(document),
        "costs": costs_figure(document),
    }
    written = []
    for name, figure in figures.items():
        for suffix in (".png", ".svg"):
            path = folder / (name + suffix)
            path.unlink(missing_ok=True)
            if figure is None:
                continue
            with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
                figure.savefig(path, dpi=150, metadata={"Date": None} if suffix == ".svg" else {"Software": None})
            written.append(path.name)
    return written


def memory_axis(document: Mapping[str, Any]) -> tuple[str, list[float | None]]:
    """The best that is known of memory, and its name: of larger sizes, measured, planned, or the host's."""
    rows, larger = document["rows"], f"{document.get('sizes')}, the same parts on one card: planned (GB)"
    sources = (
        (larger, [row["vram"].get("sizes") for row in rows]),
        (MEASURED, [row["vram"]["allocated"] for row in rows]),
        (PLANNED, [row["vram"]["planned"] for row in rows]),
        (HOST, [row["host"] for row in rows]),
    )
    for label, values in sources:
        if any(value is not None for value in values):
            return label, [None if value is None else value / GB for value in values]
    return HOST, [None] * len(rows)


def memory_points(document: Mapping[str, Any], split: str) -> tuple[str, list[Point]]:
    """What the plot of a split shows: settings, the seeds of one together."""
    rows = document["rows"]
    label, sizes = memory_axis(document)
    size_of = {row["name"]: size for row, size in zip(rows, sizes, strict=True)}
    shades = [axis for axis in document["axes"] if axis != SEED][-1:]
    points = []
    for number, (name, members) in enumerate(over_seeds(rows), start=1):
        memory = [size for row in members if (size := size_of[row["name"]]) is not None]
        found = spread(mean(row, split, "SR") for row in members)
        if found is None or not memory:
            continue
        low, high, bar = None, None, ""
        if found.deviation is not None:
            low, high = found.mean - found.deviation, found.mean + found.deviation
            bar = "standard deviation over seeds"
        elif len(members) == 1:
            estimate = metric(members[0], split, "SR") or {}
            low, high, bar = estimate["low"], estimate["high"], "95 % interval of one seed"
        group = members[0]["labels"][shades[0]] if shades else ""
        low, high = (None if value is None else 100 * value for value in (low, high))
        points.append(Point(number, name, group, max(memory), 100 * found.mean, low, high, bar))
    return label, points


def memory_figure(document: Mapping[str, Any]) -> Figure | None:
    """SR against memory, a panel for each split, with the front of what is not beaten; None without results, and
    where all need the same."""
    panels = [(split, *memory_points(document, split)) for split in document["splits"]]
    panels = [panel for panel in panels if panel[2]]
    memory = [point.memory for _, _, points in panels for point in points]
    if not memory or max(memory) - min(memory) < ALIKE * max(memory):
        return None
    key = [_key(number, *each) for number, each in enumerate(over_seeds(document["rows"]), start=1)]
    height = max(4.2, 0.19 * len(key) + 1.2)
    width = 4.6 * len(panels) + 0.075 * max(map(len, key)) + 0.5
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    every = list(dict.fromkeys(point.group for _, _, points in panels for point in points))
    axes = figure.subplots(
        1, len(panels) + 1, squeeze=False, width_ratios=[*[4.6] * len(panels), 0.075 * max(map(len, key))]
    )[0]
    for axis, (split, label, points) in zip(axes, panels, strict=False):
        _draw_points(axis, points, every)
        _draw_references(axis, document.get("references", ()), split, points)
        axis.set_xlabel(label)
        axis.set_ylabel(f"SR, {split} (%)")
    kinds = sorted({each.bar for _, _, points in panels for each in points if each.bar})
    said = [f"bars: {' or '.join(kinds)}"] if kinds else []
    if any(len(each) > 1 for _, _, points in panels for each in _alike(points)):
        said.append("points side by side: alike in memory")
    listing = axes[-1]
    listing.axis("off")
    listing.text(0, 1, "\n".join(key), va="top", fontsize=8, linespacing=1.35, parse_math=False)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=max(1, min(len(names), int(width / (0.075 * max(map(len, names)) + 0.6)))),
        fontsize=8,
        frameon=False,
        title="; ".join(said),
    )
    figure.suptitle(document["name"], parse_math=False)
    return figure


def _key(number: int, name: str, members: Sequence[Row]) -> str:
    """A setting's number with its name; where not all seeds are done, how many are, and what became of others."""
    others = [row["status"] for row in members if row["status"] != "done"]
    said = list(dict.fromkeys(others))
    if others and len(members) > 1:
        said = [f"{len(members) - len(others)} of {len(members)} seeds", *(s for s in said if s != "pending")]
    return f"{number}  {name}" + (f" ({', '.join(said)})" if said else "")


def _draw_points(axis: Axes, points: Sequence[Point], groups: Sequence[str]) -> None:
    places = _side_by_side(points)
    for index, group in enumerate(groups):
        members = [point for point in points if point.group == group]
        style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)]}
        x, y = [places[point.number][0] for point in members], [point.value for point in members]
        marker = MARKERS[index // len(COLOURS) % len(MARKERS)]
        axis.scatter(x, y, s=28, marker=marker, label=_plain(group) or "settings", zorder=3, **style)
        for point in members:
            place, below = places[point.number]
            low, high = point.low, point.high
            if low is not None and high is not None:
                axis.vlines(place, low, high, linewidth=1, alpha=0.6, **style)
            end = low if below else high
            at, offset = (place, point.value if end is None else end), (0, -4 if below else 4)
            side: dict[str, Any] = {"ha": "center", "va": "top" if below else "bottom", "fontsize": 6}
            axis.annotate(str(point.number), at, offset, textcoords="offset points", **side, **style)
    front = [points[i] for i in pareto([(point.memory, point.value) for point in points])]
    axis.step(
        [places[point.number][0] for point in front],
        [point.value for point in front],
        where="post",
        color="black",
        linewidth=1,
        linestyle="--",
        label="Pareto front",
        zorder=2,
    )
    axis.margins(0.1)
    _widen(axis, [point.memory for point in points])
    axis.grid(alpha=0.3)


def _span(memory: Sequence[float]) -> float:
    """What the axis spans: as much as differences of memory are worth looking at."""
    return max(LEAST_SPAN * max(memory), max(memory) - min(memory))


def _alike(points: Sequence[Point]) -> list[list[Point]]:
    """Points in groups that need the same memory."""
    span = _span([point.memory for point in points])
    groups: list[list[Point]] = []
    for point in sorted(points, key=lambda each: (each.memory, each.number)):
        if groups and point.memory - groups[-1][0].memory < ALIKE * span:
            groups[-1].append(point)
        else:
            groups.append([point])
    return groups


def _side_by_side(points: Sequence[Point]) -> dict[int, tuple[float, bool]]:
    """Where on the axis of memory points are drawn, by their numbers, and whether the number stands below the
    point: those of neighbors take turns, to have room."""
    span = _span([point.memory for point in points])
    return {
        point.number: (point.memory + APART * span * (i - (len(members) - 1) / 2), i % 2 == 1)
        for members in _alike(points)
        for i, point in enumerate(members)
    }


def _widen(axis: Axes, memory: Sequence[float]) -> None:
    low, high = min(memory), max(memory)
    missing = _span(memory) - (high - low)
    if missing > 0:
        axis.set_xlim(low - missing / 2, high + missing / 2)


def _draw_references(axis: Axes, references: Sequence[Row], split: str, points: Sequence[Point]) -> None:
    """What is no setting and needs no memory of training: a line at its SR, with its name.

    Names stand in the third with the fewest points. What lies far above these, such as an oracle, is named at the
    edge and takes no room.
    """
    top = max(point.value if point.high is None else point.high for point in points)
    left, right = axis.get_xlim()
    thirds = [int(3 * (point.memory - left) / (right - left)) for point in points]
    x, indent, side = min(_PLACES, key=lambda each: thirds.count(int(2 * each[0])))
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": side}
    named: dict[float, list[str]] = {}
    for row in references:
        if (found := mean(row, split, "SR")) is not None:
            named.setdefault(100 * found, []).append(row["name"])
    known = [(", ".join(names), value) for value, names in named.items()]
    above = [f"{name} {value:.1f}" for name, value in known if value > 1.5 * top]
    small: dict[str, Any] = {"fontsize": 7, "color": "0.35", "textcoords": "offset points"}
    for name, value in known:
        if value <= 1.5 * top:
            axis.axhline(value, color="0.5", linewidth=0.8, linestyle=":", zorder=1)
            close = any(0 < other - value < NAME * (axis.get_ylim()[1] - axis.get_ylim()[0]) for _, other in known)
            at, offset = (x, value), (indent, -7 if close else 1)
            axis.annotate(f"{_plain(name)} {value:.1f}", at, offset, **place, **small)
    if above:
        text = "above: " + _plain(", ".join(above))
        axis.annotate(text, (x, 1), (indent, -2), xycoords="axes fraction", ha=side, va="top", **small)


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points (cost, gain) that no other one beats in one and equals in the other, by cost."""
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[i][1] > points[front[-1]][1]:
            front.append(i)
    return front


def effects_figure(document: Mapping[str, Any]) -> Figure | None:
    """Paired differences in SR by axis and label, a dot for each pair, a bar for their mean; None without any."""
    by_split, _ = findings(document, "SR")
    found = next(iter(by_split.values()), [])
    if not any(effect.differences for each in by_split.values() for effect in each):
        return None
    names = [f"{effect.axis}: {effect.label}\nagainst {effect.reference}" for effect in found]
    figure = Figure(figsize=(8.5, 1.3 + 0.62 * len(found)), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for index, (split, each) in enumerate(by_split.items()):
        _draw_effects(axis, each, index, len(by_split), split)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(found)), [_plain(name) for name in names], fontsize=8)
    axis.invert_yaxis()
    overs = {effect.over for each in by_split.values() for effect in each if effect.estimate is not None}
    given = overs != {"episodes and trainings"}
    over = "episodes, trainings taken as given" if given else "episodes and trainings"
    axis.set_xlabel(
        "change of SR (percentage points)\n"
        "dots: pairs; bars: their mean, each context counting the same;\n"
        f"lines: its 95 % interval over {over}, not corrected\nfor the number of comparisons"
    )
    axis.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper right", ncols=len(by_split), fontsize=8, frameon=False)
    return figure


def _draw_effects(axis: Axes, found: Sequence[Effect], index: int, count: int, split: str) -> None:
    """The effects on one split, beside those on the others."""
    color = COLOURS[index % len(COLOURS)]
    height = 0.7 / count
    label: str | None = split
    for place, effect in enumerate(found):
        y = place - 0.35 + height * (index + 0.5)
        differences = [100 * value for value in effect.differences]
        axis.scatter(differences, [y] * len(differences), s=14, color=color, zorder=3)
        middle = effect.estimate or effect.spread
        if middle is not None:
            axis.barh(y, 100 * middle.mean, height * 0.9, color=color, alpha=0.35, label=label)
            label = None  # of bars of one color the first has the name
        interval = effect.estimate
        if interval is not None and interval.low is not None and interval.high is not None:
            axis.hlines(y, 100 * interval.low, 100 * interval.high, color=color, linewidth=1.2)


def costs_figure(document: Mapping[str, Any]) -> Figure | None:
    """A row of bars for every setting that has trained; None for fewer than two, and for older documents.

    Of several seeds the bar is the median and each has a dot: other work on the machine slows some of them down.
    """
    rows = [row for row in document["rows"] if row["windows_per_s"] and row.get("cpu_ms_per_window") is not None]
    settings = over_seeds(rows)
    if len(settings) < 2:
        return None
    panels = [_times(rows)]
    for name, label in MEMORY.items():
        found = [row["host"] if name == "host" else row["vram"][name] for row in rows]
        if any(value is not None for value in found):
            panels.append((label, [None if value is None else value / GB for value in found]))
    figure = Figure(figsize=(2.2 + 3.1 * len(panels), 1.3 + 0.3 * len(settings)), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (axis, (label, found)) in enumerate(
        zip(figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True)
    ):
        value_of = {row["name"]: value for row, value in zip(rows, found, strict=True)}
        _draw_bars(axis, [[value_of[row["name"]] for row in members] for _, members in settings])
        axis.set_xlabel(label, fontsize=8)
        if place == 0:
            axis.set_yticks(range(len(settings)), [_plain(name) for name, _ in settings], fontsize=8)
            axis.invert_yaxis()
    several = " bars and numbers: medians of seeds, dots: seeds;" if len(rows) > len(settings) else ""
    figure.suptitle(f"{document['name']}:{several} line: the first setting", fontsize=9, parse_math=False)
    return figure


def _times(rows: Sequence[Row]) -> tuple[str, list[float | None]]:
    """Of a training on a GPU what the clock says, without one the CPU time, which other work changes less."""
    if any(row["vram"]["allocated"] is not None for row in rows):
        return WALL, [1000 / row["windows_per_s"] for row in rows]
    return CPU, [row["cpu_ms_per_window"] for row in rows]


def _draw_bars(axis: Axes, found: Sequence[Sequence[float | None]]) -> None:
    for place, each in enumerate(found):
        values = [value for value in each if value is not None]
        if not values:
            continue
        middle = statistics.median(values)
        axis.barh(place, middle, 0.7, color=OTHER if place else FIRST)
        if len(set(values)) > 1:
            axis.scatter(values, [place] * len(values), s=8, color="black", zorder=3)
        side: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "center"}
        axis.annotate(f"{middle:.3g}", (1, place), (-3, 0), textcoords="offset points", fontsize=7, **side)
        if place == 0:
            axis.axvline(middle, color=FIRST, linewidth=0.8, linestyle="--", zorder=0)
    every = [value for each in found for value in each if value is not None]
    axis.set_xlim(0, 1.25 * max(every) or None)


def _plain(text: str) -> str:
    """Text of which matplotlib makes no formula."""
    return text.replace("$", r"\$")
