"""What a matrix found, in Markdown and CSV: means over seeds, settings beside references, effects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from vlnbench.evaluation.stats import Estimate
from vlnbench.matrix.statistics.contrasts import SEED, contrasts_of
from vlnbench.matrix.statistics.effects import (
    COMPARED,
    Effect,
    Row,
    Spread,
    evenness,
    findings,
    mean,
    over_seeds,
    over_trainings,
    pooled,
    spread,
    standings,
)
from vlnbench.matrix.statistics.looks import look_at
from vlnbench.util.tables import cells as tables
from vlnbench.util.tables.cells import markdown_cell

EFFECTS_CSV = "effects.csv"


def sections(document: Mapping[str, Any]) -> list[str]:
    """The parts of matrix.md that compare what settings reach, with their headings; none without a split."""
    parts: list[str] = []
    if not document["splits"]:
        return parts
    if SEED in document["axes"]:
        parts += ["## Over seeds", _seeds(document)]
    if document.get("references"):
        parts += _standings(document)
    if any(axis != SEED and len(labels) > 1 for axis, labels in document["axes"].items()):
        parts += ["## Effects", *_effects(document)]
    return parts


def split_title(split: str) -> str:
    """A split's name as a heading."""
    return markdown_cell(split.replace("_", " "))


def _seeds(document: Mapping[str, Any]) -> str:
    """Mean, standard deviation and interval over the seeds of each setting."""
    columns = [(split, label) for split in document["splits"] for label in COMPARED]
    done = {column: [row for row in document["rows"] if mean(row, *column) is not None] for column in columns}
    rows = []
    for name, members in over_seeds(document["rows"]):
        cells = [_over_seeds(members, done[column], column) for column in columns]
        finished = sum(row["status"] == "done" for row in members)
        rows.append([markdown_cell(name), f"{finished} of {len(members)}", *cells])
    headers = ["setting", "seeds", *(f"{split_title(split)} {label}" for split, label in columns)]
    note = "Mean ± standard deviation over seeds [95 % interval for other episodes and trainings], in percent."
    return f"{_table(headers, rows)}\n\n{note}{_between(document)}"


def _over_seeds(members: Sequence[Row], done: Sequence[Row], column: tuple[str, str]) -> str:
    members = [row for row in members if mean(row, *column) is not None]
    text = _spread(spread(mean(row, *column) for row in members))
    found = over_trainings(members, done, *column)
    if found is None or found.low is None or found.high is None:
        return text
    return f"{text} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def _between(document: Mapping[str, Any]) -> str:
    """How much trainings differ, pooled over all settings."""
    found = []
    for split in document["splits"]:
        spreads = pooled(document["rows"], split, "SR")
        if spreads is not None and spreads.degrees:
            seen, real = 100 * float(spreads.between) ** 0.5, 100 * spreads.deviation
            cells = [f"{real:.1f}", f"{spreads.degrees} degrees of freedom"]
            own = evenness(document["rows"], split, "SR")
            if own is not None and own.p is not None:
                cells.append(f"of a setting {100 * own.least:.1f} to {100 * own.most:.1f}, p {own.p:.2f}")
            found.append(f"{split_title(split)} {seen:.1f} ({'; '.join(cells)})")
    if not found:
        return ""
    return (
        f" Standard deviation of SR between seeds of a setting, pooled over settings, in points: "
        f"{', '.join(found)}. In brackets what is left of it without the choice of episodes, and whether settings "
        "spread alike, as intervals take it: a small p (Bartlett) speaks against it, a large one "
        "says little of few seeds."
    )


def _standings(document: Mapping[str, Any]) -> list[str]:
    found, count = standings(document, "SR")
    names = dict.fromkeys(each.reference for standing in found.values() for each in standing)
    if not names:
        return []
    rows = []
    for name in names:
        by_split = {split: next((s for s in each if s.reference == name), None) for split, each in found.items()}
        cells = [
            str(value)
            for each in by_split.values()
            for value in (("-",) * 3 if each is None else (each.above, each.unclear, each.below))
        ]
        rows.append([markdown_cell(name), *cells])
    kinds = ("above", "cannot tell", "below")
    headers = ["reference", *(f"{split_title(split)}: {kind}" for split in found for kind in kinds)]
    note = (
        "Settings (over their seeds) whose SR is above or below that of a reference on the same episodes: "
        f"{count} comparisons, told apart at 5 % for all of them together (Holm)."
    )
    return ["## Beside references", f"{_table(headers, rows)}\n\n{note}"]


def effects_csv(document: Mapping[str, Any]) -> str:
    """Every effect, as a mean over contexts and in each of them, one per line; differences from -1 to 1."""
    headers = ["metric", "split", "axis", "value", "against", "in", "contexts", "pairs", "difference", "deviation"]
    headers += [
        "se",
        "low",
        "high",
        "degrees",
        "over",
        "p",
        "p_holm",
        "low_together",
        "high_together",
        "comparisons",
    ]
    rows: list[list[Any]] = []
    for label in COMPARED:
        for by_context in (False, True):
            found, count = findings(document, label, by_context=by_context)
            for split, each in found.items():
                rows += [[label, split, *_line(effect), count] for effect in each if effect.differences]
    return tables.csv_text(headers, rows)


def _line(effect: Effect) -> list[Any]:
    found, middle = effect.estimate, effect.spread
    names = [effect.axis, effect.label, effect.reference, effect.context, effect.contexts, len(effect.differences)]
    deviation = None if middle is None else middle.deviation
    if found is None:
        return [*names, None if middle is None else middle.mean, deviation, *[None] * 9]
    ends = [found.mean, deviation, found.se, found.low, found.high, found.degrees]
    over = effect.over if found.se is not None else None
    return [*names, *ends, over, effect.p, effect.adjusted, *(effect.together or (None, None))]


def _effects(document: Mapping[str, Any]) -> list[str]:
    """A table of means over contexts for each split, and how to read them."""
    found = {label: findings(document, label) for label in COMPARED}
    by_split = [
        _split_effects(split, {label: each[split] for label, (each, _) in found.items()})
        for split in document["splits"]
    ]
    asked = [f"- {markdown_cell(each.name)}: {markdown_cell(each.described)}" for each in contrasts_of(document)]
    listed = ["Contrasts compare these labels:\n\n" + "\n".join(asked)] if asked else []
    return [*by_split, *listed, _note(*found[COMPARED[0]]), *_looked(document)]


def _looked(document: Mapping[str, Any]) -> list[str]:
    """Which look this is and what it spends, where looks are planned."""
    look = look_at(document)
    if look is None:
        return []
    planned = " and ".join(map(str, document["looks"]))
    if not look.number:
        return [f"Effects are computed after {planned} seeds, and so many are not there yet."]
    return [
        f"Look {look.number} of {look.of}, planned after {planned} seeds: these are effects of the first "
        f"{len(look.seeds)} seeds. It spends {100 * look.alpha:.2f} of the 5 % of errors that all may make, "
        "by which p (Holm) and the intervals together are widened."
    ]


def _split_effects(split: str, columns: Mapping[str, Sequence[Effect]]) -> str:
    rows = []
    for i, first in enumerate(columns[COMPARED[0]]):
        cells = [cell for found in columns.values() for cell in _cells(found[i])]
        names = (markdown_cell(text) for text in (first.axis, first.label, first.reference))
        rows.append([*names, str(len(first.differences)), str(first.contexts), *cells])
    headers = [split_title(split), "value", "against", "pairs", "contexts"]
    headers += [header for label in COMPARED for header in (label, "95 %", "95 % together", "p (Holm)")]
    return _table(headers, rows)


def _note(found: Mapping[str, Sequence[Effect]], count: int) -> str:
    every = [effect for each in found.values() for effect in each if effect.estimate is not None]
    overs = dict.fromkeys(effect.over for effect in every)
    lines = (
        "Differences in points between settings that agree on all other axes and on the seed: the mean over "
        "contexts, which are the choices of labels of the other axes and count the same, ± the standard deviation "
        f"of the pairs; they say nothing of other contexts. In each context: {EFFECTS_CSV}. "
    )
    if "episodes" in overs:
        lines += (
            "The 95 % intervals are for other episodes (clustered by scene) and take the trainings as given: "
            "there are too few seeds to tell how much trainings differ. "
        )
    elif overs:
        lines += "The 95 % intervals are for other episodes (clustered by scene) and other trainings at once. "
    return lines + (
        f"p (Holm) is corrected for the {count} comparisons of one metric in these tables, and the intervals "
        "together hold for all of these at once (Bonferroni); those before them hold one by one."
    )


def _cells(effect: Effect) -> tuple[str, str, str, str]:
    found, middle = effect.estimate, effect.spread
    if middle is None:
        return "-", "-", "-", "-"
    value = f"{100 * (middle.mean if found is None else found.mean):+.1f}"
    value += "" if middle.deviation is None else f" ± {100 * middle.deviation:.1f}"
    together = "-" if effect.together is None else _ends(*effect.together)
    return value, _interval(found), together, _p(effect.adjusted)


def _interval(found: Estimate | None) -> str:
    if found is None or found.se is None:
        return "-"
    if found.low is None or found.high is None:
        return "all equal"
    return _ends(found.low, found.high)


def _ends(low: float, high: float) -> str:
    return f"{100 * low:+.1f} to {100 * high:+.1f}"


def _p(value: float | None) -> str:
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _spread(found: Spread | None) -> str:
    if found is None:
        return "-"
    text = f"{100 * found.mean:.1f}"
    return text if found.deviation is None else f"{text} ± {100 * found.deviation:.1f}"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return str(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))
