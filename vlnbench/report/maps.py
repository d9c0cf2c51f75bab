"""Top-down maps of the scenes of a run, one for every storey, drawn once."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from vlnbench.errors import UsageError
from vlnbench.interfaces import Embodiment, Env, Episode, Sensor, TopDownMap
from vlnbench.report.data import ReportRow
from vlnbench.rollout.env_names import find_env
from vlnbench.rollout.executor import prepare
from vlnbench.util.loading import import_string

METERS_PER_PIXEL = 0.05
STOREY_M = 1.0
"""Heights that differ by more lie on different storeys. A map shows half a meter up and down."""


@dataclass(frozen=True, slots=True)
class Storey:
    """Floor at `height` (world y, meters), and its map where there is one.

    png: navigable cells white, others black; cell (0, 0) at world (x, z) = origin, rows along +z. size: (width,
    height) in cells.
    """

    height: float
    png: str | None = None
    origin: tuple[float, float] = (0.0, 0.0)
    size: tuple[int, int] = (0, 0)


def storeys(heights: Iterable[float]) -> list[Storey]:
    """The fewest storeys that heights (meters) fall on, from the lowest up."""
    found: list[list[float]] = []
    for height in sorted(heights):
        if not found or height - found[-1][0] > STOREY_M:
            found.append([height])
        found[-1].append(height)
    return [Storey((group[0] + group[-1]) / 2) for group in found]


def scene_storeys(entries: Sequence[ReportRow]) -> dict[str, list[Storey]]:
    """Storeys by scene id: where trajectories begin and where goals are."""
    heights: dict[str, list[float]] = {}
    for entry in entries:
        known = heights.setdefault(entry.row.scene_id, [])
        if entry.walk is not None:
            known.append(entry.walk.height)
        if entry.episode is not None:
            known += [entry.episode.start_position[1], *(goal[1] for goal in entry.episode.goals)]
    return {scene: storeys(heights[scene]) for scene in sorted(heights)}


def make_env(env: str, body: Embodiment, scenes_dir: Path, sensors: frozenset[Sensor]) -> Env:
    """The environment that maps and pictures come from, ready for use. env: as `--env`."""
    made: Env = import_string(find_env(env))(body, scenes_dir, sensors)
    prepare(made)
    return made


def draw_maps(
    floors: dict[str, list[Storey]], env: Env, some: dict[str, Episode], on_scene: Callable[[int, int], None]
) -> tuple[dict[str, list[Storey]], dict[str, str]]:
    """The same storeys with their maps, and the reason for every scene that cannot be opened or drawn.

    some: an episode of every scene. on_scene is called with (scenes done, scenes).
    """
    drawn, reasons = dict(floors), {}
    for i, (scene, levels) in enumerate(floors.items()):
        try:
            env.check([some[scene]])
            env.reset(some[scene])
            drawn[scene] = [_with_map(level, env.top_down_map(level.height, METERS_PER_PIXEL)) for level in levels]
        except UsageError as error:
            reasons[scene] = str(error)
        on_scene(i + 1, len(floors))
    return drawn, reasons


def _with_map(storey: Storey, plan: TopDownMap) -> Storey:
    """The storey with the part of the map in which something is navigable."""
    rows, columns = np.flatnonzero(plan.navigable.any(axis=1)), np.flatnonzero(plan.navigable.any(axis=0))
    if not len(rows):
        return storey
    part = plan.navigable[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    file = io.BytesIO()
    Image.fromarray(part).save(file, "PNG", optimize=True)
    origin = (
        plan.origin[0] + float(columns[0]) * plan.meters_per_pixel,
        plan.origin[1] + float(rows[0]) * plan.meters_per_pixel,
    )
    png = base64.b64encode(file.getvalue()).decode()
    return replace(storey, png=png, origin=origin, size=(part.shape[1], part.shape[0]))
