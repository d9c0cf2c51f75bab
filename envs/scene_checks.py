"""Checks of scene files and start positions that every simulator makes before a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlnbench.errors import UsageError
from vlnbench.interfaces import Episode

MAX_START_OFFSET_M = 1.0
"""A start position farther than this from the navmesh is refused (recorded ones lie within centimeters)."""


def check_scene_files(scenes_dir: Path, episodes: Sequence[Episode]) -> dict[Path, list[Episode]]:
    """Episodes by scene file. Raises UsageError naming the first file that is missing and who needs it."""
    by_scene: dict[Path, list[Episode]] = {}
    for episode in episodes:
        by_scene.setdefault(scenes_dir / episode.scene_id, []).append(episode)
    for path, members in by_scene.items():
        if not path.is_file():
            raise UsageError(
                f"{path}: scene file is missing (field 'scene_id' of episode {members[0].episode_id}); "
                "check --data-root and its scene_datasets folder"
            )
    return by_scene


def check_positions(
    scene: Path, episodes: Sequence[Episode], snap: Callable[[NDArray[np.float32]], ArrayLike]
) -> None:
    """Raise UsageError for the first start position or goal off the navmesh of its scene.

    A goal needs only to be within reach of the navmesh: whether a path leads there is a matter of the metrics.
    snap: the nearest point on the navmesh to a point (3,), NaN where none is within reach; meters, world frame.
    """
    for episode in episodes:
        start = np.array(episode.start_position, dtype=np.float32)
        offset = np.asarray(snap(start), dtype=np.float32) - start
        if not float(np.hypot(offset[0], offset[2])) <= MAX_START_OFFSET_M:  # NaN: nothing within reach
            raise UsageError(
                f"episode {episode.episode_id}: field 'start_position' {episode.start_position} is off "
                f"the navigable area of {scene}"
            )
        for goal in episode.goals:
            if not np.isfinite(np.asarray(snap(np.array(goal, dtype=np.float32)), dtype=np.float32)).all():
                raise UsageError(
                    f"episode {episode.episode_id}: field 'goals' {goal} is off the navigable area of {scene}"
                )
