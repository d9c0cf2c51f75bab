"""Episodes of a run as recordings of Rerun (`.rrd`), written by its own library: what was seen, done and said.

One timeline, `step`: 0 at the start, one more after each action. World coordinates are ours, meters, y up.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vlnbench.defaults import ENV
from vlnbench.errors import UsageError, require
from vlnbench.evaluation.answers.file import read_answers
from vlnbench.evaluation.records import each_trajectory
from vlnbench.interfaces import Action, Answer, Camera, Env, Episode, Observation, Quaternion, Trajectory
from vlnbench.report.build import choose
from vlnbench.report.data import ReportRow, RunData, read_run
from vlnbench.report.maps import METERS_PER_PIXEL, make_env
from vlnbench.util.progress import Progress, say

SUFFIX = ".rrd"
_PATH, _REFERENCE, _GOAL, _START = (30, 90, 220), (60, 160, 75), (215, 50, 45), (60, 160, 75)
_FLOOR, _WALL = 222, 70
_AWAY_M = 0.02


def write_recordings(
    folder: Path,
    out: Path,
    data_root: Path,
    *,
    episodes: int = 1,
    episode_ids: Sequence[str] = (),
    env: str = ENV,
    force: bool = False,
) -> list[Path]:
    """Write a recording per episode: to `out` where that ends with .rrd, for one, otherwise into a folder.

    episodes: how many, first those with answers that could not be read, then of each ending by turns; episode_ids:
    these instead. Without the scenes below `data_root` there are no frames and no map, which is said. Raises
    UsageError, with nothing written, without the library, for unknown ids and for an `out` that is there.
    """
    rr = require("rerun", "rerun")
    data = read_run(folder, data_root)
    chosen = _chosen(data, episodes, episode_ids)
    single = out.suffix == SUFFIX
    if single and len(chosen) != 1:
        raise UsageError(f"{out}: holds one episode, and {len(chosen)} are asked for: name a folder instead")
    paths = [out if single else out / f"{each.row.episode_id}-{each.row.repeat}{SUFFIX}" for each in chosen]
    if not force and (there := next((path for path in paths if path.exists()), None)):
        raise UsageError(f"{there}: exists already; choose another --out or overwrite it with --force")
    walked = dict(each_trajectory(folder, {each.row.key for each in chosen}))
    seen = None if data.scenes_dir is None else _open(data, env)
    if seen is None:
        say(f"without frames and maps: {data.missing}")
    try:
        with Progress("recording episodes") as progress:
            for i, (entry, path) in enumerate(zip(chosen, paths, strict=True)):
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_name(f".{path.name}.part")
                try:
                    _Recording(rr, entry, data, part).write(walked[entry.row.key], seen)
                    part.replace(path)
                finally:
                    part.unlink(missing_ok=True)
                progress.update(i + 1, len(chosen))
    except OSError as error:
        raise UsageError(f"{out}: cannot be written ({error.strerror})") from error
    finally:
        if seen is not None:
            seen.close()
    return paths


def _chosen(data: RunData, count: int, ids: Sequence[str]) -> list[ReportRow]:
    recorded = [entry for entry in data.entries if entry.walk is not None]
    known = {entry.row.episode_id for entry in recorded}
    if unknown := sorted(set(ids) - known):
        raise UsageError(f"--episode-ids {unknown[0]}: no trajectory of such an episode is recorded in this run")
    if ids:
        return [entry for entry in recorded if entry.row.episode_id in ids]
    if not 1 <= count <= len(recorded):
        raise UsageError(f"--episodes {count}: expected 1 to {len(recorded)}, as many as have a trajectory")
    unread = {key for key, columns in data.said.columns.items() if columns.get("unparsable")}
    return choose(recorded, count, unread)


def _open(data: RunData, env: str) -> Env:
    assert data.scenes_dir is not None
    return make_env(env, data.run.benchmark.body, data.scenes_dir, frozenset({"rgb", "depth", "pose"}))


def _observed(env: Env, episode: Episode, trajectory: Trajectory) -> Iterator[Observation]:
    """What was seen at every pose: the actions done again. Raises UsageError where they lead somewhere else."""
    yield env.reset(episode)
    for step, (action, pose) in enumerate(zip(trajectory.actions, trajectory.poses[1:], strict=True), start=1):
        seen = env.step(action)
        if seen.pose is not None and math.dist(seen.pose.position, pose.position) > _AWAY_M:
            raise UsageError(
                f"episode {episode.episode_id}: at step {step} {env.simulator} is elsewhere than the run was: it "
                "was made by another simulator or other scenes"
            )
        yield seen


class _Recording:
    """The recording of one episode."""

    def __init__(self, rr: Any, entry: ReportRow, data: RunData, path: Path) -> None:
        self._rr, self._entry, self._data = rr, entry, data
        name = f"{entry.row.episode_id}-{entry.row.repeat}"
        self._stream = rr.RecordingStream(f"vlnbench {data.run.identity.called}", recording_id=name)
        self._stream.save(path, default_blueprint=_blueprint())

    def write(self, trajectory: Trajectory, env: Env | None) -> None:
        """All of it; env: to see with."""
        self._stands(trajectory)
        if env is not None and self._entry.episode is not None:
            self._floor(trajectory, env)
            for step, seen in enumerate(_observed(env, self._entry.episode, trajectory)):
                self._at(step)
                self._frames(seen)
        for step in range(len(trajectory.poses)):
            self._at(step)
            self._step(trajectory, step)
        self._said()
        self._stream.disconnect()  # writes what is left

    def _at(self, step: int) -> None:
        self._stream.set_time("step", sequence=step)

    def _log(self, entity: str, *what: Any, static: bool = False) -> None:
        self._stream.log(entity, *what, static=static)

    def _stands(self, trajectory: Trajectory) -> None:
        """What stays as it is: axes, camera, reference path, goals, instruction, scores."""
        rr, episode, body = self._rr, self._entry.episode, self._data.run.benchmark.body
        self._log("world", rr.ViewCoordinates.RIGHT_HAND_Y_UP, static=True)
        for name, camera in (("rgb", body.camera), ("depth", body.depth_camera or body.camera)):
            self._log(f"world/agent/{name}", *_camera(rr, camera), static=True)
        start = [trajectory.poses[0].position]
        self._log("world/start", rr.Points3D(start, colors=_START, radii=0.1), static=True)
        scores = [f"{name}: {value}" for name, value in self._entry.row.scores.items()]
        told = [f"ended as: {self._entry.ending}", *scores]
        if episode is not None:
            told = [episode.instruction, "", *told]
            truth = episode.ground_truth
            reference = truth.locations if truth is not None else episode.reference_path
            self._log("world/reference", rr.LineStrips3D([list(reference)], colors=_REFERENCE), static=True)
            self._log("world/goals", rr.Points3D(list(episode.goals), colors=_GOAL, radii=0.15), static=True)
        self._log("episode", rr.TextDocument("\n".join(told)), static=True)

    def _floor(self, trajectory: Trajectory, env: Env) -> None:
        """The map of the storey on which the episode begins, as a picture that lies on its floor."""
        rr, episode = self._rr, self._entry.episode
        assert episode is not None
        env.reset(episode)
        height = trajectory.poses[0].position[1]
        plan = env.top_down_map(height, METERS_PER_PIXEL)
        rows, columns = plan.navigable.shape
        (x, z), y = plan.origin, height - 0.02
        right, far = x + columns * plan.meters_per_pixel, z + rows * plan.meters_per_pixel
        shade = np.where(plan.navigable, _FLOOR, _WALL).astype(np.uint8)
        corners = [[x, y, z], [right, y, z], [right, y, far], [x, y, far]]
        mesh = rr.Mesh3D(
            vertex_positions=corners,
            triangle_indices=[[0, 2, 1], [0, 3, 2]],
            vertex_texcoords=[[0, 0], [1, 0], [1, 1], [0, 1]],
            albedo_texture=np.repeat(shade[..., None], 3, axis=2),
        )
        self._log("world/map", mesh, static=True)

    def _frames(self, seen: Observation) -> None:
        if seen.rgb is not None:
            buffer = io.BytesIO()
            Image.fromarray(seen.rgb).save(buffer, "JPEG", quality=85)
            encoded = self._rr.EncodedImage(contents=buffer.getvalue(), media_type="image/jpeg")
            self._log("world/agent/rgb", encoded)
        if seen.depth is not None:
            millimeters = np.clip(seen.depth * 1000, 0, 65535).astype(np.uint16)
            self._log("world/agent/depth", self._rr.DepthImage(millimeters, meter=1000.0))

    def _step(self, trajectory: Trajectory, step: int) -> None:
        """Pose, path so far, action and distance."""
        rr, pose = self._rr, trajectory.poses[step]
        self._log("world/agent", rr.Transform3D(translation=pose.position, mat3x3=_matrix(pose.rotation)))
        self._log("world/path", rr.LineStrips3D([trajectory.positions[: step + 1]], colors=_PATH, radii=0.02))
        if trajectory.goal_distances and math.isfinite(trajectory.goal_distances[step]):
            self._log("figures/distance_to_goal", rr.Scalars(trajectory.goal_distances[step]))
        if step < len(trajectory.actions):
            self._log("actions", rr.TextLog(trajectory.actions[step].name))

    def _said(self) -> None:
        """What the model said, at the steps at which it was asked."""
        rr, key = self._rr, self._entry.row.key
        for each in read_answers(self._data.run.folder, {key}).get(key, ()):
            self._at(each.step)
            answer = each.answer
            level = rr.TextLogLevel.WARN if answer.unparsable else rr.TextLogLevel.INFO
            self._log("model/log", rr.TextLog(answer.text, level=level))
            self._log("model/answer", rr.TextDocument(_told(answer)))
            self._log("figures/seconds", rr.Scalars(each.seconds))
            for name in ("prompt_tokens", "images", "answer_tokens", "log_probability"):
                value = getattr(answer, name)
                if value is not None:
                    self._log(f"figures/{name}", rr.Scalars(value))


def _told(answer: Answer) -> str:
    read = "unparsable" if answer.unparsable else ", ".join(Action(each).name for each in answer.actions)
    return "\n".join([answer.text, "", f"read as: {read}", *([answer.note] if answer.note else [])])


def _camera(rr: Any, camera: Camera) -> list[Any]:
    """Where a camera is on the body, and what it sees; it looks along -z, y up."""
    pitch = math.radians(camera.pitch_deg) / 2
    turned = _matrix((math.sin(pitch), 0.0, 0.0, math.cos(pitch)))
    focal = camera.width / (2 * math.tan(math.radians(camera.hfov) / 2))
    size = {"width": camera.width, "height": camera.height}
    seen = rr.Pinhole(focal_length=focal, camera_xyz=rr.ViewCoordinates.RUB, image_plane_distance=0.4, **size)
    return [rr.Transform3D(translation=[0.0, camera.height_m, 0.0], mat3x3=turned), seen]


def _matrix(rotation: Quaternion) -> NDArray[np.float64]:
    """The same rotation as (3, 3); the library reads quaternions with NumPy 2 only."""
    x, y, z, w = rotation
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def _blueprint() -> Any:
    """The views with which a recording opens."""
    import rerun.blueprint as rrb

    texts = rrb.Vertical(
        rrb.TextDocumentView(origin="model/answer", name="answer"),
        rrb.TextLogView(contents=["model/log", "actions"], name="what was said and done"),
        rrb.TextDocumentView(origin="episode", name="episode"),
    )
    frames = rrb.Vertical(
        rrb.Spatial2DView(origin="world/agent/rgb", name="RGB"),
        rrb.Spatial2DView(origin="world/agent/depth", name="depth"),
        rrb.TimeSeriesView(origin="figures", name="figures"),
    )
    return rrb.Blueprint(rrb.Horizontal(rrb.Spatial3DView(origin="world", name="map and path"), frames, texts))
