"""Results by scene, path length, instruction length, turns and language: pure functions of rows and episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vlnbench.evaluation.choice.shape import TURN_DEG, scene_name, turns, words
from vlnbench.evaluation.columns.table import Numbers, Table, Values
from vlnbench.evaluation.stats import Estimate
from vlnbench.evaluation.summary import METRICS, aggregate, values_of
from vlnbench.report.data import RunData
from vlnbench.report.failures import ENDINGS, Ending, endings

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


def breakdowns(data: RunData) -> list[Breakdown]:
    """Every breakdown of scored rows with at least one group; those of which nothing is known are left out."""
    by_scene = "intervals clustered by scene"
    table, ended = data.run.table, endings(data.run.table)
    made = [
        _by_label(
            "Scene",
            "Intervals clustered by reference path, since a scene has no other scenes to compare with.",
            _Of(table, ended, table.trajectory),
            [scene_name(scene) for scene in table.scenes],
            table.scene,
        ),
        _by_bins(
            "Path length",
            f"Geodesic distance from start to goal; {by_scene}.",
            _Of(table, ended, table.scene),
            _start_distance(data),
            _ranges(_PATH_EDGES, " m"),
        ),
        _by_bins(
            "Instruction length",
            f"Words separated by spaces; {by_scene}.",
            _Of(table, ended, table.scene),
            np.array(data.quantity(words), dtype=float),
            (_WORD_EDGES, ("up to 15 words", "16 to 25", "26 to 35", "36 to 50", "51 to 100", "over 100")),
        ),
        _by_bins(
            "Turns",
            f"Corners of {TURN_DEG:g}° or more in the reference path; {by_scene}.",
            _Of(table, ended, table.scene),
            np.array(data.quantity(turns), dtype=float),
            (_TURN_EDGES, ("none", "1", "2", "3", "4 or more")),
        ),
    ]
    spoken = data.quantity(lambda episode: episode.language)
    languages = sorted({language for language in spoken if isinstance(language, str)})
    if len(languages) > 1:
        made.append(
            _by_label(
                "Language",
                f"Language of the instruction; {by_scene}.",
                _Of(table, ended, table.scene),
                languages,
                np.array([languages.index(str(language)) for language in spoken]),
            )
        )
    return [breakdown for breakdown in made if breakdown.groups]


@dataclass(frozen=True, slots=True)
class _Of:
    """What groups are made of: rows, how each ended, and its cluster."""

    table: Table
    ended: Numbers
    clusters: Numbers


def _start_distance(data: RunData) -> Values:
    table = data.run.table
    planned = np.array(data.quantity(lambda episode: episode.geodesic_distance), dtype=float)
    measured = table.having("ok") & ~(np.isnan(table.scores["geodesic_start"]) & bool(data.run.identity.imported))
    return np.where(measured, table.scores["geodesic_start"], planned)


def _by_bins(
    title: str, note: str, of: _Of, quantity: Values, bins: tuple[Sequence[float], Sequence[str]]
) -> Breakdown:
    edges, labels = bins
    place = np.where(np.isnan(quantity), -1, np.searchsorted(edges, quantity, side="right"))
    return _grouped(title, note, of, labels, place)


def _by_label(title: str, note: str, of: _Of, labels: Sequence[str], label: Numbers) -> Breakdown:
    """labels: of groups, some perhaps alike; label: the place of each row's there."""
    names = sorted(set(labels))
    place = np.array([names.index(name) for name in labels])[label]
    return _grouped(title, note, of, names, place)


def _grouped(title: str, note: str, of: _Of, labels: Sequence[str], place: Numbers) -> Breakdown:
    """place: of each row's label, -1 for none."""
    groups = (_group(label, of, np.flatnonzero(place == i)) for i, label in enumerate(labels))
    return Breakdown(title, note, tuple(group for group in groups if group.n))


def _group(label: str, of: _Of, where: Numbers) -> Group:
    estimates = {
        metric.label: aggregate(metric, values_of(metric, of.table, where), of.clusters[where])
        for metric in METRICS
        if metric.label in SHOWN
    }
    ended = np.bincount(of.ended[where], minlength=len(ENDINGS)).tolist()
    counts = Counter({name: count for name, count in zip(ENDINGS, ended, strict=True) if count})
    return Group(label, len(where), estimates, counts)


def _ranges(edges: Sequence[float], unit: str) -> tuple[Sequence[float], Sequence[str]]:
    """Bins between edges, the upper edge left out."""
    between = [f"{low:g} to {high:g}{unit}" for low, high in pairwise(edges)]
    return edges, [f"under {edges[0]:g}{unit}", *between, f"{edges[-1]:g}{unit} and over"]
