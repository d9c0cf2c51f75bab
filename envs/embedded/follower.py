"""Shortest-path follower on the discrete action set, with the semantics of habitat-sim's greedy follower.

From the current pose it tries k left or k right turns followed by one forward, and takes the first action of the
best such primitive: geodesic progress in steps, less a little for every turn, for a collision and for ending
close to an obstacle. Follows the rules and the float32 arithmetic of habitat-sim's GreedyGeodesicFollower (MIT
license).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from envs.embedded.navmesh.greedy import best_primitive
from envs.embedded.navmesh.motion import half_angle
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.query.surface import MAX_PATH
from vlnbench.interfaces import Action, Embodiment, Pose, Vec3

_THRASHING = 16  # alternating turns in a row that count as being stuck

Float32s = NDArray[np.float32]


class GreedyFollower:
    """Follows the shortest path to the nearest of several goals; one instance per episode.

    goal_radius_m: geodesic distance in meters below which it stops.
    """

    def __init__(self, pathfinder: PathFinder, body: Embodiment, goal_radius_m: float) -> None:
        self._pathfinder = pathfinder
        self._sliding = body.allow_sliding
        self._numbers = np.array([body.forward_m, *half_angle(body.turn_deg), goal_radius_m])
        self._headings = _headings(body.turn_deg)
        self._line = np.empty((MAX_PATH, 3), dtype=np.float32)
        self._goal: Float32s | None = None
        self._history: list[Action] = []
        self._committed: list[Action] = []

    def next_action(self, pose: Pose, goals: Sequence[Vec3]) -> Action:
        """The next action from a pose; STOP within the goal radius, or where nothing leads on."""
        self._head_for(self._nearest(pose.position, np.asarray(goals, dtype=np.float32)))
        if self._committed:
            action = self._committed.pop(0)
        else:
            primitive = self._best_primitive(pose)
            if self._thrashing():
                self._committed = primitive[1:]
            action = primitive[0]
        self._history.append(action)
        return action

    def _nearest(self, position: Vec3, goals: Float32s) -> Float32s:
        """The goal with the shortest path; the first one where none can be reached."""
        found = self._pathfinder.find_path_multi(position, goals).closest_end_index if len(goals) > 1 else 0
        goal: Float32s = goals[max(0, found)]
        return goal

    def _head_for(self, goal: Float32s) -> None:
        """Adopt a goal; what was done on the way to another one is forgotten."""
        if self._goal is None or not np.array_equal(goal, self._goal):
            self._goal, self._history, self._committed = goal, [], []

    def _best_primitive(self, pose: Pose) -> list[Action]:
        state = np.array([*pose.position, *pose.rotation], dtype=np.float32)
        assert self._goal is not None
        found = best_primitive(
            self._pathfinder.surface.table,
            state,
            self._goal.reshape(1, 3),
            self._line,
            self._numbers,
            self._headings,
            self._sliding,
        )
        if found < 0:
            return [Action.STOP]
        turns, to_the_right = divmod(found, 2)
        return [Action.TURN_RIGHT if to_the_right else Action.TURN_LEFT] * turns + [Action.MOVE_FORWARD]

    def _thrashing(self) -> bool:
        recent = self._history[-_THRASHING:]
        turns = {Action.TURN_LEFT, Action.TURN_RIGHT}
        alternating = all(a != b for a, b in pairwise(recent))
        return len(recent) == _THRASHING and set(recent) <= turns and alternating


def _headings(turn_deg: float) -> int:
    """How many headings are tried to each side: one per turn while the sum of turns stays below pi.

    habitat-sim adds the turns up in float32, which for 15 degrees makes it try one heading more than 180 / 15.
    """
    turn = np.float32(math.radians(turn_deg))
    turned = np.cumsum(np.full(math.ceil(180.0 / turn_deg) + 1, turn), dtype=np.float32)
    return 1 + int(np.count_nonzero(turned < np.float32(math.pi)))
