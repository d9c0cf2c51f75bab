"""The parts of the page that need no script: figures, endings and breakdowns as HTML. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from vlnbench.evaluation.stats import Estimate
from vlnbench.evaluation.summary import METRICS, Metric, Summary
from vlnbench.report.breakdowns import Breakdown, Group
from vlnbench.report.failures import Ending, Kind

NONE = "\N{EN DASH}"
"""Where there is no value."""

_TILES = ("SR", "SPL", "NE", "OS", "nDTW")
_NAMES = {
    "SR": "success rate",
    "SPL": "success weighted by path length",
    "OS": "oracle success rate",
    "NE": "navigation error",
    "nDTW": "normalized dynamic time warping",
    "SDTW": "success weighted by nDTW",
    "CLS": "coverage weighted by length score",
}
_BY_LABEL = {metric.label: metric for metric in METRICS}

Kinds = Mapping[Ending, Kind]


def tiles(summary: Summary) -> str:
    """The figures that are read first."""
    cards = []
    for label in _TILES:
        value, metric = summary.metrics[label], _BY_LABEL[label]
        if value is None:
            continue
        spread = "one scene: no interval" if value.low is None else f"95 % interval {_interval(metric, value)}"
        unit = "m" if metric.kind == "meters" else "%"
        cards.append(
            f'<div class="tile"><dt>{escape(label)} <span>{escape(_NAMES[label])}</span></dt>'
            f'<dd><b>{_number(metric, value.mean)}</b><span class="unit">{unit}</span></dd>'
            f"<dd>{spread}</dd></div>"
        )
    return f'<dl class="tiles">{"".join(cards)}</dl>'


def metrics_table(summary: Summary) -> str:
    """Every metric with standard error, interval and n."""
    rows = []
    for metric in METRICS:
        value = summary.metrics[metric.label]
        unit = {"meters": " (m)", "count": ""}.get(metric.kind, " (%)")
        title = escape(_NAMES.get(metric.label, metric.label))
        name = f'<th scope="row"><abbr title="{title}">{escape(metric.label)}</abbr>{unit}</th>'
        if value is None:
            rows.append(f"<tr>{name}{f'<td>{NONE}</td>' * 3}<td>0</td><td></td></tr>")
            continue
        cells = (_number(metric, value.mean), _number(metric, value.se), _interval(metric, value), str(value.n))
        rows.append(
            f"<tr>{name}{''.join(f'<td>{cell}</td>' for cell in cells)}<td>{_whisker(metric, value)}</td></tr>"
        )
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("mean", "SE", "95 % interval", "n"))
    return scrolling(
        "All metrics",
        f'<table class="figures"><thead><tr><th scope="col">metric</th>{heads}<th scope="col">'
        f'<span class="axis"><i>0</i><i>100 %</i></span></th></tr></thead><tbody>{"".join(rows)}</tbody></table>',
    )


def endings_table(counts: Mapping[Ending, int], kinds: Kinds) -> str:
    """How episodes ended, with the definition of every kind; buttons filter the list of episodes."""
    total = sum(counts.values())
    rows = []
    for name, kind in kinds.items():
        count = counts.get(name, 0)
        if name == "unknown" and not count:  # of imported results alone
            continue
        label = f'<i class="dot k-{name}"></i>{escape(kind.label)}'
        shown = f'<button type="button" data-kind="{name}">{label}</button>' if count else label
        code = f" <code>{kind.part_of}</code>" if kind.part_of and kind.part_of != name else ""
        rows.append(
            f'<tr{"" if count else " class=none"}><th scope="row">{shown}</th><td>{count}</td>'
            f"<td>{100 * count / total:.1f} %</td><td>{escape(kind.definition)}{code}</td></tr>"
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("ended as", "n", "share", "definition"))
    body = "".join(rows)
    table = f'<table class="endings"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return (
        f'<div class="endbar">{_bar(counts, kinds, total)}</div>'
        f"{scrolling('How episodes ended', table)}"
        '<p class="note">The first kind that applies counts, in the order unreachable goal, success, passed '
        "the goal, stopped short or never came near, stuck, out of steps. Distances are geodesic, to the nearest "
        "goal. Names in <code>this type</code> are the kinds of the command line of which these are parts.</p>"
    )


def breakdown_section(breakdown: Breakdown, kinds: Kinds) -> str:
    """One table of groups."""
    rows = "".join(_group_row(group, kinds) for group in breakdown.groups)
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("SPL (%)", "nDTW (%)", "NE (m)"))
    table = (
        f'<table class="figures groups"><thead><tr><th scope="col">{escape(breakdown.title)}</th>'
        '<th scope="col">n</th><th scope="col">SR (%)</th>'
        '<th scope="col"><span class="axis"><i>0</i><i>SR, 95 % interval</i><i>100</i></span></th>'
        f'{heads}<th scope="col">how they ended</th></tr></thead><tbody>{rows}</tbody></table>'
    )
    return (
        f'<section class="breakdown"><h3>{escape(breakdown.title)}</h3>'
        f'<p class="note">{escape(breakdown.note)}</p>'
        f"{scrolling(breakdown.title, table)}</section>"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of names and values."""
    return "<dl class='facts'>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs) + "</dl>"


def _group_row(group: Group, kinds: Kinds) -> str:
    rate = group.estimates["SR"]
    cells = [f"<td>{group.n}</td>"]
    if rate is None:
        cells += [f"<td>{NONE}</td>", "<td></td>"]
    else:
        cells += [f"<td>{_number(_BY_LABEL['SR'], rate.mean)}</td>", f"<td>{_whisker(_BY_LABEL['SR'], rate)}</td>"]
    for label in ("SPL", "nDTW", "NE"):
        value = group.estimates[label]
        cells.append(f"<td>{NONE if value is None else _number(_BY_LABEL[label], value.mean)}</td>")
    bar = _bar(group.endings, kinds, group.n)
    return f'<tr><th scope="row">{escape(group.label)}</th>{"".join(cells)}<td>{bar}</td></tr>'


def _bar(counts: Mapping[Ending, int], kinds: Kinds, total: int) -> str:
    """Parts of a whole, in the order of the kinds."""
    parts: list[str] = []
    told: list[str] = []
    left = 0
    for name, kind in kinds.items():
        count = counts.get(name, 0)
        if not count:
            continue
        told.append(f"{kind.label} {count}")
        parts.append(
            f'<rect class="k-{name}" x="{100 * left / total:.3f}" width="{100 * count / total:.3f}" height="10">'
            f"<title>{escape(told[-1])}</title></rect>"
        )
        left += count
    label = escape(", ".join(told), quote=True)
    return (
        f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


def _whisker(metric: Metric, value: Estimate) -> str:
    """Mean and interval of a rate or fraction on an axis from 0 to 100 %."""
    if metric.kind not in ("rate", "fraction"):
        return ""
    x = 100 * value.mean
    line = ""
    if value.low is not None and value.high is not None:
        line = f'<line x1="{2 * 100 * value.low:.1f}" x2="{2 * 100 * value.high:.1f}" y1="8" y2="8"/>'
    said = f"{_number(metric, value.mean)} %, interval {_interval(metric, value)}"
    return (
        f'<svg class="whisker" viewBox="-4 0 208 16" role="img" aria-label="{said}"><title>{said}</title>'
        '<path d="M0 3V13M50 6V10M100 3V13M150 6V10M200 3V13M0 8H200"/>'
        f'{line}<circle cx="{2 * x:.1f}" cy="8" r="4"/></svg>'
    )


def _interval(metric: Metric, value: Estimate) -> str:
    if value.low is None or value.high is None:
        return NONE
    return f"{_number(metric, value.low)} to {_number(metric, value.high)}"


def _number(metric: Metric, value: float | None) -> str:
    if value is None:
        return NONE
    percent = metric.kind in ("rate", "fraction")
    digits = 2 if metric.kind == "meters" else 1
    return f"{round(value * (100 if percent else 1), digits) + 0.0:.{digits}f}"  # + 0.0: no "-0.0"


def scrolling(label: str, table: str) -> str:
    """A table that scrolls by itself where the window is narrow."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label, quote=True)}">{table}</div>'
