"""One picture of a generated house: plans, paths, instructions, and what a camera sees."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.render.renderer import Renderer
from envs.embedded.render.scene import load_scene
from envs.houses.edition import SCENES_DIR, Edition
from envs.houses.files.manifest import read_config
from envs.houses.plan.house import House, make_house
from envs.houses.plan.visibility import visible
from envs.houses.preview.shots import DrawnEpisode, Shot
from vlnbench.errors import UsageError
from vlnbench.interfaces import Camera

_CAMERA = Camera(width=320, height=240, hfov=90.0, height_m=1.25)
_TURN_DEG = 15.0
_LEFT, _RIGHT, _FORWARD = 2, 3, 1
_FRAMES_ALONG = 8
_CORNER_M = 0.45


def preview(
    data_root: Path, edition: Edition, out: Path, split: str, house_name: str | None, episodes: int
) -> str:
    """Draw a house of a generated split into a PNG file; returns what was drawn.

    Raises UsageError if the benchmark, split or house is not there, the file is not a PNG or cannot be written, or
    matplotlib is missing.
    """
    if out.suffix.lower() != ".png" or not out.parent.is_dir():
        raise UsageError(f"--out {out}: expected the name of a .png file in an existing folder")
    if not 1 <= episodes <= 8:
        raise UsageError(f"--episodes {episodes}: expected 1 to 8")
    config = read_config(data_root, edition)
    walks, name, scene = _walks(data_root / edition.r2r_dir / split, house_name, episodes)
    house = make_house(name, config)
    renderer = Renderer(load_scene(data_root / SCENES_DIR / scene))
    along = list(_frames_along(renderer, walks[0]))
    rooms = list(_room_frames(renderer, house))
    try:
        from envs.houses.preview.figure import draw
    except ModuleNotFoundError as error:
        raise UsageError("preview: matplotlib is not installed; pip install 'vlnbench[report]'") from error
    figure = draw(house, walks, along, rooms)
    try:
        figure.savefig(out, dpi=100, metadata={"Software": None}, pil_kwargs={"compress_level": 4})
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written ({error.strerror}); choose a writable folder") from error
    counts = f"{len(house.plan.rooms)} rooms, {len(house.items)} objects, {len(walks)} episodes of {split}"
    return f"{name}: {counts}: {out}"


def _walks(folder: Path, name: str | None, count: int) -> tuple[list[DrawnEpisode], str, str]:
    """Episodes of one house of a split, each of another trajectory, the house's name and its scene."""
    split = folder.name
    rows = _read(folder / f"{split}.json.gz")["episodes"]
    truth = _read(folder / f"{split}_gt.json.gz")
    names = sorted({_house_of(row) for row in rows})
    chosen = name or names[0]
    if chosen not in names:
        raise UsageError(f"--house {chosen}: {split} has {names[0]} to {names[-1]} ({len(names)} houses)")
    by_trajectory: dict[int, Any] = {}
    for row in rows:
        if _house_of(row) == chosen:
            by_trajectory.setdefault(row["trajectory_id"], row)
    shown = list(by_trajectory.values())[:count]
    return [_walk(row, truth[str(row["episode_id"])]) for row in shown], chosen, shown[0]["scene_id"]


def _read(path: Path) -> Any:
    try:
        with gzip.open(path) as file:
            return json.load(file)
    except FileNotFoundError as error:
        found = ", ".join(sorted(p.name for p in path.parents[1].glob("*") if p.is_dir()))
        raise UsageError(f"{path} is not there; splits below {path.parents[1]}: {found or 'none'}") from error
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); make it anew") from error


def _house_of(row: dict[str, Any]) -> str:
    return Path(row["scene_id"]).parent.name


def _walk(row: dict[str, Any], truth: dict[str, Any]) -> DrawnEpisode:
    _, y, _, w = row["start_rotation"]
    goal = row["goals"][0]["position"]
    text = row["instruction"]["instruction_text"]
    locations = np.array(truth["locations"], dtype=np.float64)
    yaw = 2.0 * math.atan2(y, w)
    return DrawnEpisode(
        str(row["episode_id"]), text, locations, tuple(truth["actions"]), yaw, (goal[0], goal[1], goal[2])
    )


def _frames_along(renderer: Renderer, walk: DrawnEpisode) -> Iterator[Shot]:
    """Frames at equal numbers of steps from start to end."""
    poses, at, yaw = [(0, walk.yaw)], 0, walk.yaw
    for action in walk.actions:
        at += action == _FORWARD
        yaw += math.radians(_TURN_DEG) * ((action == _LEFT) - (action == _RIGHT))
        poses.append((at, yaw))
    for i in range(_FRAMES_ALONG):
        step = round(i * (len(poses) - 1) / (_FRAMES_ALONG - 1))
        at, yaw = poses[step]
        yield _shot(renderer, f"episode {walk.episode_id}, step {step}", walk.locations[at], yaw)


def _room_frames(renderer: Renderer, house: House) -> Iterator[Shot]:
    """Every room from the free corner that shows most of its objects."""
    for room, rect in enumerate(house.plan.rooms):
        inner, floor = rect.grown(-_CORNER_M), house.plan.floor_m(room)
        taken = [item.footprint for item in house.items if item.room == room and item.noun != "rug"]
        taken += [ramp.rect for ramp in house.plan.ramps_of(room)]
        corners = [(x, z) for x in (inner.x0, inner.x1) for z in (inner.z0, inner.z1)]
        free = [c for c in corners if all(t.distance(*c) > 0.35 for t in taken)] or [rect.center]
        inside = [item for item in house.items if item.room == room]

        def shown(corner: tuple[float, float], floor: float = floor, inside: Any = inside) -> int:
            return sum(visible(house, (corner[0], floor + _CAMERA.height_m, corner[1]), item) for item in inside)

        x, z = max(free, key=shown)
        ahead = rect.center if (x, z) != rect.center else (rect.x1, z) if rect.width > rect.depth else (x, rect.z1)
        yaw = math.atan2(x - ahead[0], z - ahead[1])
        yield _shot(renderer, house.title(room), np.array((x, floor, z)), yaw)


def _shot(renderer: Renderer, title: str, position: NDArray[np.float64], yaw: float) -> Shot:
    x, y, z = (float(value) for value in position)
    frame = renderer.render(_CAMERA, (x, y, z), (0.0, math.sin(yaw / 2), 0.0, math.cos(yaw / 2)), depth=False)
    assert frame.rgb is not None
    return Shot(title, frame.rgb)
