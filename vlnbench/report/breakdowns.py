"""Results by scene, path length, instruction length, turns and language: pure functions of entries."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vlnbench.evaluation.choice.shape import TURN_DEG, scene_name
from vlnbench.evaluation.records import Row
from vlnbench.evaluation.stats import Estimate
from vlnbench.evaluation.summary import METRICS, aggregate
from vlnbench.report.data import ReportRow
from vlnbench.report.failures import Ending

SHOWN = ("SR", "SPL", "NE", "nDTW")

_PATH_EDGES = (5.0, 7.5, 10.0, 12.5, 15.0)
_WORD_EDGES = (16.0, 26.0, 36.0, 51.0, 101.0)
_TURN_EDGES = (1.0, 2.0, 3.0, 4.0)


@dataclass(frozen=True, slots=True)
class Group:
    """Episodes that have something in common: their estimates by metric label and how they ended."""

    label: str
    n: int
    estimates: dict[str, Estimate | None]
    endings: Counter[Ending]


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Groups that every episode of which the quantity is known falls into one of. note: what the quantity is."""

    title: str
    note: str
    groups: tuple[Group, ...]


def breakdowns(entries: Sequence[ReportRow]) -> list[Breakdown]:
    """Every breakdown of scored entries with at least one group; those of which nothing is known are left out."""
    by_scene = "intervals clustered by scene"
    made = [
        _by_label(
            "Scene",
            "Intervals clustered by reference path, since a scene has no other scenes to compare with.",
            entries,
            lambda entry: scene_name(entry.row.scene_id),
            lambda row: row.trajectory_id,
        ),
        _by_bins(
            "Path length",
            f"Geodesic distance from start to goal; {by_scene}.",
            entries,
            lambda entry: entry.start_distance,
            _ranges(_PATH_EDGES, " m"),
        ),
        _by_bins(
            "Instruction length",
            f"Words separated by spaces; {by_scene}.",
            entries,
            lambda entry: entry.words,
            (_WORD_EDGES, ("up to 15 words", "16 to 25", "26 to 35", "36 to 50", "51 to 100", "over 100")),
        ),
        _by_bins(
            "Turns",
            f"Corners of {TURN_DEG:g}° or more in the reference path; {by_scene}.",
            entries,
            lambda entry: entry.turns,
            (_TURN_EDGES, ("none", "1", "2", "3", "4 or more")),
        ),
    ]
    languages = {entry.episode.language for entry in entries if entry.episode}
    if len(languages) > 1:
        made.append(
            _by_label(
                "Language",
                f"Language of the instruction; {by_scene}.",
                entries,
                lambda entry: entry.episode.language if entry.episode else None,
            )
        )
    return [breakdown for breakdown in made if breakdown.groups]


def _by_bins(
    title: str,
    note: str,
    entries: Sequence[ReportRow],
    quantity: Callable[[ReportRow], float | None],
    bins: tuple[Sequence[float], Sequence[str]],
) -> Breakdown:
    edges, labels = bins
    members: list[list[ReportRow]] = [[] for _ in labels]
    for entry in entries:
        value = quantity(entry)
        if value is not None:
            members[bisect_right(edges, value)].append(entry)
    groups = (_group(label, part) for label, part in zip(labels, members, strict=True) if part)
    return Breakdown(title, note, tuple(groups))


def _by_label(
    title: str,
    note: str,
    entries: Sequence[ReportRow],
    label: Callable[[ReportRow], str | None],
    cluster: Callable[[Row], Hashable] = lambda row: row.scene_id,
) -> Breakdown:
    members: dict[str, list[ReportRow]] = {}
    for entry in entries:
        name = label(entry)
        if name is not None:
            members.setdefault(name, []).append(entry)
    return Breakdown(title, note, tuple(_group(name, members[name], cluster) for name in sorted(members)))


def _group(
    label: str, entries: Sequence[ReportRow], cluster: Callable[[Row], Hashable] = lambda row: row.scene_id
) -> Group:
    rows = [entry.row for entry in entries]
    estimates = {metric.label: aggregate(metric, rows, cluster) for metric in METRICS if metric.label in SHOWN}
    return Group(label, len(entries), estimates, Counter(entry.ending for entry in entries))


def _ranges(edges: Sequence[float], unit: str) -> tuple[Sequence[float], Sequence[str]]:
    """Bins between edges, the upper edge left out."""
    between = [f"{low:g} to {high:g}{unit}" for low, high in pairwise(edges)]
    return edges, [f"under {edges[0]:g}{unit}", *between, f"{edges[-1]:g}{unit} and over"]
