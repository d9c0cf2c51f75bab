"""Submission files of the R2R-CE and RxR-CE leaderboards, made from a run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from vlnbench.errors import UsageError
from vlnbench.evaluation.recorded import RecordedRun, load_run, remake_plan
from vlnbench.interfaces import Action, Episode, Pose, Trajectory
from vlnbench.util.durable.files import encode_line, write_bytes

Format = Literal["evalai-r2r", "rxr"]


def export(
    folder: Path, out: Path, kind: Format, data_root: Path, *, allow_partial: bool = False, force: bool = False
) -> int:
    """Write the trajectories of a run in a submission format; returns the number of episodes written.

    "evalai-r2r" (EvalAI challenge 719): see `evalai_r2r`. "rxr" (RxR-Habitat): see `rxr`; needs the dataset below
    `data_root` for its instruction ids. Raises UsageError, with nothing written, if the run does not cover its
    whole split (unless `allow_partial`), if it has repeats, or if `out` exists (unless `force`).
    """
    if out.exists() and not force:
        raise UsageError(f"{out}: exists already; choose another --out or overwrite it with --force")
    if not out.parent.is_dir():
        raise UsageError(f"{out}: there is no folder {out.parent}; make it or choose another --out")
    run = load_run(folder)
    if run.repeats != 1:
        raise UsageError(
            f"{folder}: ran every episode {run.repeats} times, but a submission holds one path per episode; "
            "export a run with --repeats 1"
        )
    if not run.trajectories:
        raise UsageError(f"{folder}: no trajectory is recorded there; nothing to export")
    if not allow_partial:
        _check_complete(run)
    paths = {key[2]: trajectory for key, trajectory in run.trajectories.items() if key in run.rows}
    if kind == "evalai-r2r":
        content = json.dumps(evalai_r2r(paths), allow_nan=False).encode() + b"\n"
    else:
        episodes = {episode.episode_id: episode for episode in remake_plan(run, data_root).episodes}
        content = b"".join(map(encode_line, rxr(paths, episodes)))
    write_bytes(out, content)
    return len(paths)


def evalai_r2r(paths: dict[str, Trajectory]) -> dict[str, list[dict[str, Any]]]:
    """R2R-CE: episode id (string) -> one entry per pose, the start included.

    An entry has `position` [x, y, z] in meters (world frame, y up), `heading` in radians in [-pi, pi], 0
    towards -z and positive to the left, and `stop`: whether STOP has been called, true at most in the last entry.
    """
    return {
        episode_id: [
            {"position": list(pose.position), "heading": pose.yaw, "stop": action is Action.STOP}
            for pose, action in zip(path.poses, (None, *path.actions), strict=True)
        ]
        for episode_id, path in sorted(paths.items(), key=lambda item: (len(item[0]), item[0]))
    }


def rxr(paths: dict[str, Trajectory], episodes: dict[str, Episode]) -> list[dict[str, Any]]:
    """RxR-Habitat: {"instruction_id": int, "path": [[x, y, z], ...]} sorted by instruction id.

    Points equal to their predecessor are left out. Raises UsageError for an episode without an integer instruction
    id, and for two episodes with the same one.
    """
    entries: dict[int, list[list[float]]] = {}
    for episode_id, path in paths.items():
        number = _instruction_id(episodes[episode_id])
        if number in entries:
            raise UsageError(f"episode {episode_id}: field 'instruction.instruction_id' {number} appears twice")
        entries[number] = [list(pose.position) for pose in _moves(path.poses)]
    return [{"instruction_id": number, "path": entries[number]} for number in sorted(entries)]


def _moves(poses: tuple[Pose, ...]) -> list[Pose]:
    return [pose for i, pose in enumerate(poses) if i == 0 or pose.position != poses[i - 1].position]


def _instruction_id(episode: Episode) -> int:
    text = episode.instruction_id
    if text is None or not text.isdecimal():
        raise UsageError(
            f"episode {episode.episode_id}: field 'instruction.instruction_id': expected an integer, "
            f"found {text!r}; only RxR-CE episodes can be exported as rxr"
        )
    return int(text)


def _check_complete(run: RecordedRun) -> None:
    """Refuse a run that would leave episodes of its split without a path."""
    published = run.benchmark.splits.get(run.split)
    size = max(run.n_split, published or 0)  # a run on part of a dataset counts that part as its split
    lost = sum(key not in run.trajectories for key in run.rows)
    reasons = [
        (run.n_planned < size, f"it was planned over {run.n_planned} of {size} episodes"),
        (len(run.rows) < run.n_planned, f"{len(run.rows)} of {run.n_planned} planned episodes are done"),
        (lost > 0, f"{lost} of {len(run.rows)} episodes ended in an error and left no trajectory"),
    ]
    found = [reason for holds, reason in reasons if holds]
    if found:
        raise UsageError(
            f"{run.folder}: not a complete submission: {'; '.join(found)}; "
            "finish the run, or export what there is with --allow-partial"
        )
