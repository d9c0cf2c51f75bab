"""Shortest-path follower on the discrete action set, with the semantics of habitat-sim's greedy follower.

From the current pose it tries k left or k right turns followed by one forward, and takes the first action of the
best such primitive: geodesic progress in steps, less a little for every turn, for a collision and for ending
close to an obstacle. Follows the rules and the float32 arithmetic of habitat-sim's GreedyGeodesicFollower (MIT
licence).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from envs.embedded.navmesh.motion import advance
from envs.embedded.navmesh.pathfinder import PathFinder
from vlnbench.interfaces import Action, Embodiment, Pose, Vec3

_TURN_COST = np.float32(0.0125)
_COLLISION_COST = np.float32(0.25)
_CLOSE_COST = np.float32(0.05)
_NONE = np.float32(0.0)
_CLOSE_M = np.float32(0.2)
_CLOSE_SEARCH_M = float(np.float32(1.1) * _CLOSE_M)
_GOOD_ENOUGH = np.float32(0.99)  # of the largest possible reward, 1
_THRASHING = 16  # alternating turns in a row that count as being stuck

Float32s = NDArray[np.float32]
State = tuple[Float32s, Float32s]


class GreedyFollower:
    """Follows the shortest path to the nearest of several goals; one instance per episode.

    goal_radius_m: geodesic distance in metres below which it stops.
    """

    def __init__(self, pathfinder: PathFinder, body: Embodiment, goal_radius_m: float) -> None:
        self._pathfinder = pathfinder
        self._body = body
        self._forward = np.float32(body.forward_m)
        self._goal_radius = np.float32(goal_radius_m)
        self._headings = _headings(body.turn_deg)
        self._goal: Float32s | None = None
        self._history: list[Action] = []
        self._committed: list[Action] = []

    def next_action(self, pose: Pose, goals: Sequence[Vec3]) -> Action:
        """The next action from a pose; STOP within the goal radius, or where nothing leads on."""
        position = np.array(pose.position, dtype=np.float32)
        self._head_for(self._nearest(position, np.asarray(goals, dtype=np.float32)))
        if self._committed:
            action = self._committed.pop(0)
        else:
            primitive = self._best_primitive((position, np.array(pose.rotation, dtype=np.float32)))
            if self._thrashing():
                self._committed = primitive[1:]
            action = primitive[0]
        self._history.append(action)
        return action

    def _nearest(self, position: Float32s, goals: Float32s) -> Float32s:
        """The goal with the shortest path; the first one where none can be reached."""
        goal: Float32s = goals[max(0, self._pathfinder.find_path_multi(position, goals).closest_end_index)]
        return goal

    def _head_for(self, goal: Float32s) -> None:
        """Adopt a goal; what was done on the way to another one is forgotten."""
        if self._goal is None or not np.array_equal(goal, self._goal):
            self._goal, self._history, self._committed = goal, [], []

    def _best_primitive(self, state: State) -> list[Action]:
        distance = self._distance(state[0])
        if distance < self._goal_radius or math.isinf(distance):
            return [Action.STOP]
        best_reward, best = -_COLLISION_COST, [Action.STOP]
        left = right = state
        for turns in range(self._headings):
            for side, pose in ((Action.TURN_LEFT, left), (Action.TURN_RIGHT, right)):
                reward = self._reward(pose, distance, turns)
                if reward > best_reward:
                    best_reward, best = reward, [side] * turns + [Action.MOVE_FORWARD]
            if best_reward > _GOOD_ENOUGH:
                break
            left, right = self._turned(left, Action.TURN_LEFT), self._turned(right, Action.TURN_RIGHT)
        return best

    def _reward(self, state: State, distance: np.float32, turns: int) -> np.float32:
        position, _, collided = self._advance(state, Action.MOVE_FORWARD)
        progress = (distance - self._distance(position)) / self._forward
        clearance = self._pathfinder.distance_to_closest_obstacle(position, _CLOSE_SEARCH_M)
        costs = _TURN_COST * np.float32(turns)
        costs += _COLLISION_COST if collided else _NONE
        costs += _CLOSE_COST if clearance < _CLOSE_M else _NONE
        return np.float32(progress - costs)

    def _distance(self, position: Float32s) -> np.float32:
        assert self._goal is not None
        return np.float32(self._pathfinder.geodesic_distance(position, self._goal))

    def _turned(self, state: State, action: Action) -> State:
        position, rotation, _ = self._advance(state, action)
        return position, rotation

    def _advance(self, state: State, action: Action) -> tuple[Float32s, Float32s, bool]:
        body = self._body
        return advance(self._pathfinder, *state, int(action), body.forward_m, body.turn_deg, body.allow_sliding)

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
