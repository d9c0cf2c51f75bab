"""Shortest-path follower on the discrete action set, with the semantics of habitat-sim's greedy follower.

From the current pose it tries k left or k right turns followed by one forward, and takes the first action of the
best such primitive: geodesic progress in steps, less a little for every turn, for a collision and for ending
close to an obstacle.
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

_TURN_COST = 0.0125
_COLLISION_COST = 0.25
_CLOSE_COST = 0.05
_CLOSE_M = 0.2
_GOOD_ENOUGH = 0.99  # of the largest possible reward, 1
_THRASHING = 16  # alternating turns in a row that count as being stuck

State = tuple[NDArray[np.float32], NDArray[np.float32]]


class GreedyFollower:
    """Follows the shortest path to the nearest of several goals; one instance per episode."""

    def __init__(self, pathfinder: PathFinder, body: Embodiment, goal_radius_m: float) -> None:
        self._pathfinder = pathfinder
        self._body = body
        self._goal_radius = goal_radius_m
        self._history: list[Action] = []
        self._committed: list[Action] = []

    def next_action(self, pose: Pose, goals: Sequence[Vec3]) -> Action:
        """The next action from a pose; STOP within the goal radius, or where nothing leads on."""
        if self._committed:
            action = self._committed.pop(0)
        else:
            state = (np.array(pose.position, dtype=np.float32), np.array(pose.rotation, dtype=np.float32))
            primitive = self._best_primitive(state, np.asarray(goals, dtype=np.float32))
            if self._thrashing():
                self._committed = primitive[1:]
            action = primitive[0]
        self._history.append(action)
        return action

    def _best_primitive(self, state: State, goals: NDArray[np.float32]) -> list[Action]:
        distance = self._pathfinder.geodesic_distance(state[0], goals)
        if distance < self._goal_radius or math.isinf(distance):
            return [Action.STOP]
        best_reward, best = -_COLLISION_COST, [Action.STOP]
        left = right = state
        for turns in range(math.ceil(180.0 / self._body.turn_deg)):
            for side, pose in ((Action.TURN_LEFT, left), (Action.TURN_RIGHT, right)):
                reward = self._reward(pose, goals, distance) - _TURN_COST * turns
                if reward > best_reward:
                    best_reward, best = reward, [side] * turns + [Action.MOVE_FORWARD]
            if best_reward > _GOOD_ENOUGH:
                break
            left, right = self._turned(left, Action.TURN_LEFT), self._turned(right, Action.TURN_RIGHT)
        return best

    def _reward(self, state: State, goals: NDArray[np.float32], distance: float) -> float:
        position, _, collided = self._advance(state, Action.MOVE_FORWARD)
        progress = (distance - self._pathfinder.geodesic_distance(position, goals)) / self._body.forward_m
        clearance = self._pathfinder.distance_to_closest_obstacle(position, 1.1 * _CLOSE_M)
        return progress - (_COLLISION_COST if collided else 0.0) - (_CLOSE_COST if clearance < _CLOSE_M else 0.0)

    def _turned(self, state: State, action: Action) -> State:
        position, rotation, _ = self._advance(state, action)
        return position, rotation

    def _advance(self, state: State, action: Action) -> tuple[NDArray[np.float32], NDArray[np.float32], bool]:
        body = self._body
        return advance(self._pathfinder, *state, int(action), body.forward_m, body.turn_deg, body.allow_sliding)

    def _thrashing(self) -> bool:
        recent = self._history[-_THRASHING:]
        turns = {Action.TURN_LEFT, Action.TURN_RIGHT}
        alternating = all(a != b for a, b in pairwise(recent))
        return len(recent) == _THRASHING and set(recent) <= turns and alternating
