"""Submission files of challenges: where agents walked, from which episodes are scored anew with a simulator.

R2R-CE (EvalAI challenge 719): episode id -> one entry per pose with `position`, `heading` and `stop`, as
`vlnbench export --format evalai-r2r` writes. RxR-Habitat: JSON lines of `instruction_id` and `path`, without
headings, turns and the points at which the agent stood still; the end of a path is where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlnbench.data.episodes import EpisodeSet
from vlnbench.data.protocol import Benchmark
from vlnbench.errors import UsageError
from vlnbench.importing.formats import Found
from vlnbench.interfaces import Action, Env, Episode, Pose, Trajectory
from vlnbench.rollout.env_names import find_env
from vlnbench.util.durable.fields import NUMBER, short
from vlnbench.util.durable.json_stream import elements, members
from vlnbench.util.loading import import_string
from vlnbench.util.progress import Progress

if TYPE_CHECKING:
    from vlnbench.importing.scores import Imported

EPISODE, INSTRUCTION, PATH = "episode_id", "instruction_id", "path"
MOST_POSES = 20_000
"""Poses of one path; the challenges end an episode after 500 actions."""
_APART_M = 0.1
"""How far a path may begin from the start of its episode."""


def paths(path: Path) -> Iterator[Found]:
    """Either file as objects of an id and a path."""
    try:
        first = next(iter(elements(path)), None)
    except UsageError:
        first = None  # a file that is one large object
    if isinstance(first, dict) and INSTRUCTION in first:
        for number, value in enumerate(elements(path), start=1):
            if not isinstance(value, dict) or INSTRUCTION not in value:
                raise UsageError(f"{path}: line {number}: field {INSTRUCTION!r}: missing")
            yield Found(f"{path}: line {number}", {EPISODE: value[INSTRUCTION], **value})
    else:
        for name, value in members(path):
            if isinstance(value, list):
                yield Found(f"{path}: episode {short(name)}", {EPISODE: name, PATH: value})
            else:
                yield Found(f"{path}: {short(name)}", {})


def named_by_instruction(found: Sequence[Found], episodes: Sequence[Episode]) -> list[Found]:
    """The same under ids of episodes, where they have those of RxR's instructions."""
    ids = {episode.instruction_id: episode.episode_id for episode in episodes if episode.instruction_id}
    return [
        each._replace(
            fields={**each.fields, EPISODE: ids.get(str(each.fields[INSTRUCTION]), each.fields[EPISODE])}
        )
        if INSTRUCTION in each.fields
        else each
        for each in found
    ]


def scored(
    found: Mapping[str, Found], split: EpisodeSet, benchmark: Benchmark, env_name: str
) -> tuple[list[Imported], dict[str, Trajectory], list[str]]:
    """Episodes with scores, what was walked in each, and remarks. found: by the ids of episodes of `split`.

    Distances are the simulator's. Raises UsageError where scenes are missing or a path is not of its episode.
    """
    from vlnbench.evaluation.metrics import score  # these load numpy, without which formats are listed
    from vlnbench.importing.scores import Imported
    from vlnbench.rollout.episode import goal_distances
    from vlnbench.rollout.executor import prepare

    known = {episode.episode_id: episode for episode in split.episodes}
    walked = {name: _poses(each, known[name]) for name, each in found.items()}
    headed = [name for name, each in found.items() if INSTRUCTION not in each.fields]
    turned = [
        name for name in headed if _apart(walked[name][0].yaw, Pose((0, 0, 0), known[name].start_rotation).yaw)
    ]
    remarks = ["the actions of a trajectory are inferred from its poses; collisions are not known"]
    if turned:
        remarks.append(
            f"DIFFERS: {len(turned)} paths begin with another heading than their episodes, {turned[0]} first: "
            "another version of the data?"
        )
    if not split.episodes[0].goals:
        raise UsageError(f"{split.path}: has no goals, so nothing can be scored")
    env: Env = import_string(find_env(env_name))(benchmark.body, split.scenes_dir, frozenset())
    episodes, trajectories = [], {}
    try:
        prepare(env)
        env.check([known[name] for name in found])
        order = sorted(found, key=lambda name: known[name].scene_id)
        with Progress("scoring paths") as progress:
            for count, name in enumerate(order, start=1):
                env.reset(known[name])
                made = _trajectory(found[name], walked[name])
                made = replace(made, goal_distances=goal_distances(env, known[name], list(made.poses)))
                scores = asdict(score(made, known[name], benchmark.success_distance_m))
                scores |= {"collisions": None} | ({"steps": None} if INSTRUCTION in found[name].fields else {})
                episodes.append(Imported(found[name].where, name, "", scores))
                trajectories[name] = made
                progress.update(count, len(order))
        remarks.append(f"scored here with the distances of {env.simulator}")
    finally:
        env.close()
    return episodes, trajectories, remarks


def _poses(found: Found, episode: Episode) -> list[Pose]:
    """Poses of a path. Raises UsageError for what is none, and for one that begins elsewhere."""
    entries = found.fields[PATH]
    if not isinstance(entries, list) or not 1 <= len(entries) <= MOST_POSES:
        raise UsageError(
            f"{found.where}: field {PATH!r}: expected 1 to {MOST_POSES} poses, found {short(entries)}"
        )
    if INSTRUCTION in found.fields:
        points = [_point(found, entry) for entry in entries]
        yaws = [
            math.atan2(a[0] - b[0], a[2] - b[2]) if a != b else 0.0 for a, b in pairwise([*points, points[-1]])
        ]
    else:
        if not all(isinstance(entry, dict) and NUMBER.fits(entry.get("heading")) for entry in entries):
            raise UsageError(f"{found.where}: expected entries with position, heading in radians and stop")
        for number, entry in enumerate(entries, start=1):
            stop = entry.get("stop", "nothing")
            if type(stop) not in (bool, int) or stop not in (0, 1):
                raise UsageError(
                    f"{found.where}: entry {number}: field 'stop': expected true, false, 1 or 0, "
                    f"found {short(stop)}"
                )
        points, yaws = [_point(found, entry.get("position")) for entry in entries], [e["heading"] for e in entries]
    away = math.dist(points[0], episode.start_position)
    if away > _APART_M:
        raise UsageError(
            f"{found.where}: begins {away:.2f} m from the start of episode {episode.episode_id}; another --split, "
            "--benchmark or version of the data?"
        )
    return [
        Pose((x, y, z), (0.0, math.sin(yaw / 2), 0.0, math.cos(yaw / 2)))
        for (x, y, z), yaw in zip(points, yaws, strict=True)
    ]


def _point(found: Found, value: Any) -> tuple[float, float, float]:
    if not isinstance(value, list) or len(value) != 3 or not all(map(NUMBER.fits, value)):
        raise UsageError(f"{found.where}: expected positions of three finite numbers, found {short(value)}")
    return float(value[0]), float(value[1]), float(value[2])


def _trajectory(found: Found, poses: list[Pose]) -> Trajectory:
    """The poses with the actions that led from each to the next."""
    if INSTRUCTION in found.fields:  # STOP leaves the agent where it is
        stops = [False] * len(poses) + [True]
        poses = [*poses, poses[-1]]
    else:
        stops = [bool(entry["stop"]) for entry in found.fields[PATH]]
        if stops[0]:  # at its start: the entry is the pose before STOP and the one after
            poses, stops = [poses[0], *poses], [False, *stops]
    actions = [
        Action.STOP if stop else _between(before, after)
        for (before, after), stop in zip(pairwise(poses), stops[1:], strict=True)
    ]
    if Action.STOP in actions[:-1]:
        raise UsageError(f"{found.where}: goes on after 'stop'")
    return Trajectory(tuple(poses), tuple(actions), (False,) * len(actions))


def _between(before: Pose, after: Pose) -> Action:
    turn = math.remainder(after.yaw - before.yaw, 2.0 * math.pi)
    if before.position != after.position or abs(turn) < 1e-6:
        return Action.MOVE_FORWARD
    return Action.TURN_LEFT if turn > 0.0 else Action.TURN_RIGHT


def _apart(a: float, b: float) -> bool:
    return abs(math.remainder(a - b, 2.0 * math.pi)) > 0.02
