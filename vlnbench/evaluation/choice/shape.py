"""What is known of an episode before anybody walks it: length, turns and words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line has a choice, and numpy is heavy
    from vlnbench.interfaces import Episode, Vec3


TURN_DEG = 45.0
_SHORT_M = 0.1


def scene_name(scene_id: str) -> str:
    """What a scene is called: the name of its file without the suffix."""
    return scene_id.rpartition("/")[2].rpartition(".")[0] or scene_id


def corners(path: Sequence[Vec3]) -> int:
    """Points of a path (meters) where its direction in plan changes by `TURN_DEG` or more; very short pieces are
    passed over."""
    count, before = 0, None
    for (x0, _, z0), (x1, _, z1) in pairwise(path):
        if math.hypot(x1 - x0, z1 - z0) < _SHORT_M:
            continue
        heading = math.atan2(x1 - x0, z1 - z0)
        turned = 0.0 if before is None else abs(math.remainder(heading - before, math.tau))
        count += turned >= math.radians(TURN_DEG) - 1e-9
        before = heading
    return count


def _length(episode: Episode) -> float | None:
    return episode.geodesic_distance


def turns(episode: Episode) -> int | None:
    """Corners of the reference path."""
    return corners(episode.reference_path) if episode.reference_path else None


def words(episode: Episode) -> int:
    """Words of the instruction."""
    return len(episode.instruction.split())


SHAPES: Mapping[str, Callable[[Episode], float | None]] = {"length": _length, "turns": turns, "words": words}
"""What a condition may be about: shortest way from start to goal in meters, as the dataset has it; corners of the
reference path; words of the instruction. None where the dataset does not tell."""


def average(name: str, episodes: Sequence[Episode]) -> float | None:
    """Mean of a shape over the episodes that have it and where it is finite; None if none does."""
    values = [value for value in map(SHAPES[name], episodes) if value is not None and math.isfinite(value)]
    return sum(values) / len(values) if values else None
