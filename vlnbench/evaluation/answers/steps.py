"""The steps of recorded episodes as columns: where the agent was, what it did, and what its model said there."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from vlnbench.evaluation.answers.file import read_answers
from vlnbench.evaluation.records import RowKey, each_trajectory
from vlnbench.interfaces import Action, Trajectory
from vlnbench.rollout.answers import Answered

KEY = ("benchmark", "split", "episode_id", "repeat")
WHERE = ("action", "x", "y", "z", "yaw", "collided", "distance_to_goal")
SAID = ("text", "unparsable", "note", "prompt_tokens", "images", "answer_tokens", "log_probability")
COLUMNS = (*KEY, "step", *WHERE, "asked", "tries", "seconds", "parsed", *SAID)


def steps_of(folder: Path, keys: Collection[RowKey]) -> dict[str, list[Any]]:
    """Columns with a line per action, in the order of steps; of an episode that broke, per answer.

    Pose, yaw (radians) and distance (meters) are those at which an action begins. asked: the step at which it was
    decided on. At such a step stand the last answer there, how many were needed (tries), and seconds of all.
    """
    found: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    wanted = frozenset(keys)
    walked, said = dict(each_trajectory(folder, wanted)), read_answers(folder, wanted)
    for key in keys:
        answers = _by_step(said.get(key, ()))
        trajectory = walked.get(key)
        steps = sorted(answers) if trajectory is None else range(len(trajectory.actions))
        asked = None
        for step in steps:
            asked = step if step in answers else asked
            line = dict(zip(KEY, key, strict=True)) | {"step": step, "asked": asked}
            if trajectory is not None:
                line |= _where(trajectory, step)
            if step in answers:
                line |= _said(answers[step])
            for name, column in found.items():
                column.append(line.get(name))
    return found


def _by_step(answers: Collection[Answered]) -> dict[int, list[Answered]]:
    found: dict[int, list[Answered]] = {}
    for each in answers:
        found.setdefault(each.step, []).append(each)
    return found


def _where(trajectory: Trajectory, step: int) -> dict[str, Any]:
    pose = trajectory.poses[step]
    distance = trajectory.goal_distances[step] if trajectory.goal_distances else math.inf
    return {
        "action": trajectory.actions[step].name,
        **dict(zip("xyz", pose.position, strict=True)),
        "yaw": pose.yaw,
        "collided": trajectory.collided[step],
        "distance_to_goal": distance if math.isfinite(distance) else None,
    }


def _said(answers: list[Answered]) -> dict[str, Any]:
    last = answers[-1].answer
    return {
        "tries": len(answers),
        "seconds": sum(each.seconds for each in answers),
        "parsed": " ".join(Action(action).name for action in last.actions),
        **{name: getattr(last, name) for name in SAID},
    }
