"""What the pictures of the published rows show (SR over time, and over GPU-hours), and whether a file shows it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from vlnbench.leaderboard.published import Dataset, Literature, Published

SPLIT = "val_unseen"
FEWEST = 5
"""Rows that a picture needs."""
DRAWING = 1
"""Counts how pictures are drawn: raised by one, files drawn in the old way are out of date."""


@dataclass(frozen=True, slots=True)
class Point:
    """One method. x: year, or GPU-hours; sr in percent; apart: privileged, or only a part of the split."""

    x: float
    sr: float
    name: str
    sensors: str | None
    apart: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """A file and its points by dataset, ordered by x."""

    file: str
    panels: Mapping[str, tuple[Point, ...]]

    @property
    def digest(self) -> str:
        """Stands in the file and tells which points it shows; its bytes differ between versions of matplotlib."""
        shown = {name: list(map(asdict, points)) for name, points in self.panels.items()}
        return hashlib.sha256(json.dumps([DRAWING, shown]).encode()).hexdigest()


def over_time(literature: Literature) -> Picture:
    """SR by the month of the arXiv id: of each paper the best by class of sensors, as its authors report it."""
    best: dict[tuple[str, object, str | None, bool], Point] = {}
    for row in _with_sr(literature):
        point = _point(row, row.source.posted)
        if point is None or row.evidence == "third party":
            continue
        key = (row.dataset, row.source.arxiv, point.sensors, point.apart)
        if key not in best or best[key].sr < point.sr:
            best[key] = point
    return _picture("sr_over_time.svg", ((key[0], point) for key, point in best.items()))


def over_hours(literature: Literature) -> Picture:
    """SR by GPU-hours of the training, where these are known."""
    found = (
        (row.dataset, _point(row, row.gpu_hours.hours if row.gpu_hours else None)) for row in _with_sr(literature)
    )
    return _picture("sr_vs_gpu_hours.svg", ((dataset, point) for dataset, point in found if point))


def pictures(literature: Literature) -> list[Picture]:
    """Those with enough points."""
    made = (over_time(literature), over_hours(literature))
    return [each for each in made if sum(map(len, each.panels.values())) >= FEWEST]


def outdated_pictures(made: Iterable[Picture], folder: Path) -> list[Picture]:
    """Pictures of which the folder has no file, or one that shows other points."""
    return [each for each in made if not _shows(folder / each.file, each.digest)]


def records(points: Iterable[Point]) -> list[Point]:
    """Points above all earlier ones, without those that stand apart. Takes them ordered by x."""
    found: list[Point] = []
    for point in points:
        if not point.apart and (not found or point.sr > found[-1].sr):
            found.append(point)
    return found


def _shows(path: Path, digest: str) -> bool:
    return path.is_file() and digest.encode() in path.read_bytes()


def _with_sr(literature: Literature) -> list[Published]:
    return [row for row in literature.rows if row.split == SPLIT and row.metrics.SR is not None]


def _point(row: Published, x: float | None) -> Point | None:
    if x is None or row.metrics.SR is None:
        return None
    return Point(round(x, 3), row.metrics.SR, row.method, row.sensors, row.privileged or row.partial)


def _picture(file: str, points: Iterable[tuple[str, Point]]) -> Picture:
    panels: dict[str, list[Point]] = {dataset: [] for dataset in get_args(Dataset)}
    for dataset, point in points:
        panels[dataset].append(point)
    ordered = {
        name: tuple(sorted(found, key=lambda point: (point.x, point.sr, point.name)))
        for name, found in panels.items()
        if found
    }
    return Picture(file, ordered)
