"""Scores on expert walks beside SR: means over seeds as Markdown, and every number as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from vlnbench.matrix.statistics.effects import Row, Spread, over_seeds, spread
from vlnbench.util.tables import cells as tables
from vlnbench.util.tables.cells import markdown_cell

OFFLINE_CSV = "offline.csv"
SHOWN = (("loss", 1.0, 3), ("accuracy", 100.0, 1), ("changes", 100.0, 1), ("stop", 100.0, 1))
"""Scores with their unit and digits."""


def scored_sets(document: Mapping[str, Any]) -> list[str]:
    """Names of the sets that settings or references were scored on."""
    return list(dict.fromkeys(name for row in _rows(document) for name in _sets(row)))


def offline_section(document: Mapping[str, Any]) -> list[str]:
    """A table for each set, means over seeds; nothing where nothing was scored."""
    names = scored_sets(document)
    if not names:
        return []
    parts = ["## On expert walks", *(_table(document, name) for name in names)]
    return [
        *parts,
        "Mean ± standard deviation over seeds on held-out walks of an expert, whose actions before each step are "
        "known: loss per action (nats), and the share of its actions that are the likeliest answer, in percent: "
        "all, those that differ from the one before, STOP. gray: without sight; other: with frames of a walk in "
        f"another scene. With intervals by scene: {OFFLINE_CSV}.",
    ]


def offline_csv(document: Mapping[str, Any]) -> str:
    """Every score of every setting and reference, one per line; shares from 0 to 1."""
    headers = ["setting", "kind", "set", "frames", "score", "mean", "se", "low", "high", "actions", "scenes"]
    rows: list[list[Any]] = []
    beside = {row["name"] for row in document.get("references", ())}
    for row in _rows(document):
        kind = "reference" if row["name"] in beside else "setting"
        for name, found in _sets(row).items():
            for frames, scores in found["frames"].items():
                for label, _, _ in SHOWN:
                    each = scores[label] or {}
                    values = [each.get(key) for key in ("mean", "se", "low", "high", "n", "clusters")]
                    rows.append([row["name"], kind, name, frames, label, *values])
    return tables.csv_text(headers, rows)


def _rows(document: Mapping[str, Any]) -> list[Row]:
    return [*document["rows"], *document.get("references", ())]


def _sets(row: Row) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (row.get("offline") or {}).get("sets") or {}
    return found


def _table(document: Mapping[str, Any], name: str) -> str:
    groups: list[tuple[str, Sequence[Row]]] = list(over_seeds(document["rows"]))
    groups += [(f"reference: {row['name']}", [row]) for row in document.get("references", ()) if _sets(row)]
    kinds = list(
        dict.fromkeys(kind for row in _rows(document) for kind in _sets(row).get(name, {"frames": ()})["frames"])
    )
    columns = [(label, kind, unit, digits) for label, unit, digits in SHOWN for kind in kinds]
    rows = []
    for group, members in groups:
        cells = [
            _cell(spread(_mean(row, name, kind, label) for row in members), unit, digits)
            for label, kind, unit, digits in columns
        ]
        rows.append([markdown_cell(group), *cells])
    headers = [markdown_cell(name.replace("_", " ")), *(f"{label} {kind}" for label, kind, _, _ in columns)]
    return str(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))


def _mean(row: Row, name: str, frames: str, label: str) -> float | None:
    found = (_sets(row).get(name) or {"frames": {}})["frames"].get(frames) or {}
    each = found.get(label)
    return None if each is None else float(each["mean"])


def _cell(found: Spread | None, unit: float, digits: int) -> str:
    if found is None:
        return "-"
    text = f"{unit * found.mean:.{digits}f}"
    return text if found.deviation is None else f"{text} ± {unit * found.deviation:.{digits}f}"
