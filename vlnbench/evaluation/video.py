"""Videos of recorded trajectories: what the agent saw, beside the top-down map with its path."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vlnbench.errors import UsageError
from vlnbench.interfaces import Env, Episode, TopDownMap, Trajectory
from vlnbench.util.durable.folder import inner

FRAMES_PER_SECOND = 8
_FLOOR, _WALL, _PATH, _REFERENCE = (222, 222, 222), (70, 70, 78), (30, 90, 220), (60, 160, 75)
_START, _GOAL, _AGENT = (60, 160, 75), (215, 50, 45), (245, 160, 20)
_MARGIN_M = 1.5

Image8 = NDArray[np.uint8]


def write_video(path: Path, env: Env, episode: Episode, trajectory: Trajectory) -> None:
    """Re-render a trajectory and write it as MP4 or GIF, by the suffix of `path`.

    `env` must offer the rgb sensor. The frames are those of `draw_frames`. The file appears when it is whole.
    Raises UsageError for any other suffix, and where it cannot be written.
    """
    if path.suffix not in (".mp4", ".gif"):
        raise UsageError(f"{path}: videos are written as .mp4 or .gif")
    import imageio.v2 as imageio

    frames: list[Any] = list(draw_frames(env, episode, trajectory))
    frames += [frames[-1]] * FRAMES_PER_SECOND
    part = path.with_name(f".{path.name}.part{path.suffix}")
    try:
        inner(path.parent)
        part.unlink(missing_ok=True)  # or the link that somebody has put there
        part.touch(exist_ok=False)  # says what is wrong, where the encoder would not
        if path.suffix == ".gif":
            imageio.mimwrite(part, frames, duration=1000 / FRAMES_PER_SECOND, loop=0)
        else:
            imageio.mimwrite(part, frames, fps=FRAMES_PER_SECOND, codec="libx264", macro_block_size=2)
        part.replace(path)
    except OSError as error:  # without an error number where the encoder gives up
        raise UsageError(f"{path}: cannot be written ({error.strerror or 'the video encoder stopped'})") from error


def draw_frames(env: Env, episode: Episode, trajectory: Trajectory) -> Iterator[Image8]:
    """One picture per pose of a trajectory, uint8 (height, width, 3), all of one size with even sides.

    What the camera sees there, beside the top-down map (north is -z), with the instruction below. `env` must offer
    the rgb sensor; it is reset to the episode. On the map: green line, ground-truth path; blue line, path so far;
    green dot, start; red dots, goals; orange arrow, the agent.
    """
    env.reset(episode)
    plan = _Plan(
        env.top_down_map(trajectory.poses[0].position[1]), episode, trajectory, env.embodiment.camera.height
    )
    for step, pose in enumerate(trajectory.poses):
        map_image = plan.draw(trajectory, step)
        caption = _caption(episode, trajectory, step, env.embodiment.camera.width + map_image.shape[1])
        yield _even(np.vstack([np.hstack([env.render(pose), map_image]), caption]))


class _Plan:
    """The part of the top-down map around an episode, scaled to the height of the video."""

    def __init__(self, plan: TopDownMap, episode: Episode, trajectory: Trajectory, height_px: int) -> None:
        points = np.vstack([trajectory.positions, *(np.array([goal]) for goal in episode.goals)])[:, [0, 2]]
        if episode.ground_truth is not None:
            points = np.vstack([points, np.array(episode.ground_truth.locations)[:, [0, 2]]])
        extent = np.ptp(points, axis=0) + 2 * _MARGIN_M
        width_px = int(np.clip(height_px * extent[0] / extent[1], height_px // 2, height_px * 3 // 2))
        size = np.array([width_px, height_px])
        self._scale = float((size / extent).min())
        self._low = (points.min(axis=0) + points.max(axis=0) - size / self._scale) / 2
        self._base = Image.fromarray(_crop(plan, self._low, (width_px, height_px), self._scale))
        self._episode = episode

    def draw(self, trajectory: Trajectory, step: int) -> Image8:
        image = self._base.copy()
        canvas = ImageDraw.Draw(image)
        if self._episode.ground_truth is not None:
            self._line(canvas, np.array(self._episode.ground_truth.locations), _REFERENCE, 2)
        self._line(canvas, trajectory.positions[: step + 1], _PATH, 3)
        self._dot(canvas, trajectory.positions[0], _START, 6)
        for goal in self._episode.goals:
            self._dot(canvas, np.array(goal), _GOAL, 6)
        self._arrow(canvas, trajectory.positions[step], trajectory.poses[step].yaw)
        return np.asarray(image)

    def _pixel(self, point: NDArray[np.float64]) -> tuple[float, float]:
        x, y = (point[[0, 2]] - self._low) * self._scale
        return float(x), float(y)

    def _line(
        self, canvas: ImageDraw.ImageDraw, points: NDArray[np.float64], color: tuple[int, int, int], width: int
    ) -> None:
        if len(points) > 1:
            canvas.line([self._pixel(point) for point in points], fill=color, width=width, joint="curve")

    def _dot(
        self, canvas: ImageDraw.ImageDraw, point: NDArray[np.float64], color: tuple[int, int, int], radius: int
    ) -> None:
        x, y = self._pixel(point)
        canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color, outline=(255, 255, 255))

    def _arrow(self, canvas: ImageDraw.ImageDraw, point: NDArray[np.float64], yaw: float) -> None:
        x, y = self._pixel(point)
        corners = []
        for turn, length in ((0.0, 14.0), (2.5, 10.0), (-2.5, 10.0)):
            angle = yaw + turn
            corners.append((x - length * np.sin(angle), y - length * np.cos(angle)))
        canvas.polygon(corners, fill=_AGENT, outline=(40, 40, 40))


def _crop(plan: TopDownMap, low: NDArray[np.float64], size: tuple[int, int], scale: float) -> Image8:
    """Color image of the map: pixel (u, v) shows world (x, z) = low + (u, v) / scale."""
    width, height = size
    x = low[0] + (np.arange(width) + 0.5) / scale
    z = low[1] + (np.arange(height) + 0.5) / scale
    columns = np.floor((x - plan.origin[0]) / plan.meters_per_pixel).astype(int)
    rows = np.floor((z - plan.origin[1]) / plan.meters_per_pixel).astype(int)
    inside_x, inside_z = (
        (columns >= 0) & (columns < plan.navigable.shape[1]),
        (rows >= 0) & (rows < plan.navigable.shape[0]),
    )
    free = np.zeros((height, width), dtype=bool)
    free[np.ix_(inside_z, inside_x)] = plan.navigable[np.ix_(rows[inside_z], columns[inside_x])]
    return np.where(free[..., None], np.array(_FLOOR), np.array(_WALL)).astype(np.uint8)


def _caption(episode: Episode, trajectory: Trajectory, step: int, width: int) -> Image8:
    lines = textwrap.wrap(" ".join(episode.instruction.split()), max(20, width // 7))
    image = Image.new("RGB", (width, 16 * (len(lines) + 1) + 8), (255, 255, 255))
    canvas = ImageDraw.Draw(image)
    for i, line in enumerate(lines):
        canvas.text((6, 4 + 16 * i), line, fill=(0, 0, 0))
    state = f"step {step}/{len(trajectory.actions)}"
    if step:
        state += f"  {trajectory.actions[step - 1].name}" + ("  collided" if trajectory.collided[step - 1] else "")
    if trajectory.goal_distances:
        state += f"  {trajectory.goal_distances[step]:.2f} m to goal"
    canvas.text((6, 4 + 16 * len(lines)), state, fill=(90, 90, 90))
    return np.asarray(image)


def _even(frame: Image8) -> Image8:
    """H.264 wants even sides."""
    return frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]
