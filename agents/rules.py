"""Agents that follow simple rules: one only reads, one only looks, one does both. None recognizes anything.

They tell how far an instruction without eyes, or eyes without an instruction, lead on a benchmark.
"""

from __future__ import annotations

import re
from collections import deque

import numpy as np
from numpy.typing import NDArray

from agents.base import EpisodeAgent
from vlnbench.interfaces import Action, Conventions, Episode, Observation, Sensor

_TURN_DEG = 15.0
_MEAN_STEPS = 37
"""Forward actions of the mean R2R-CE path (VLN-CE)."""
_BLOCKED_M = 0.45
_CLAUSE = re.compile(r"[.!?,;]|\band\b|\bthen\b")
_SIDE = re.compile(r"\b(left|right)\b")
_AROUND = re.compile(r"\b(?:around|u turn|turn back|other way|look behind)\b")
_SLIGHT = re.compile(r"\b(?:slight|slightly|bear|veer|little)\b")
_BESIDE = re.compile(r"\b(?:past|pass|keep|have the|there is|see|find)\b")
_DOOR = re.compile(r"\b(?:door|doorway|room|enter|into|exit)\b")
_STOP = re.compile(r"\b(?:stop|wait|destination|done)\b")


class BlindAgent(EpisodeAgent):
    """Reads the text and looks at nothing: turns where it says so, and walks a share of the mean path a clause."""

    expects = Conventions(forward_m=0.25, turn_deg=_TURN_DEG)

    def begin(self, episode: Episode, seed: int) -> None:
        self._plan = deque(plan(episode.instruction))

    def act_one(self, observation: Observation) -> Action:
        return self._plan.popleft() if self._plan else Action.STOP


class WanderAgent(EpisodeAgent):
    """Looks at depth and ignores the text: walks on where there is room, for as long as the mean path."""

    sensors: frozenset[Sensor] = frozenset({"depth"})

    def begin(self, episode: Episode, seed: int) -> None:
        self._steps = 0
        self._side: Action | None = None

    def act_one(self, observation: Observation) -> Action:
        assert observation.depth is not None
        if self._steps == _MEAN_STEPS:
            return Action.STOP
        ways = free_ways(observation.depth)
        if ways[1] > _BLOCKED_M:
            self._steps, self._side = self._steps + 1, None
            return Action.MOVE_FORWARD
        if self._side is None:  # and keep to it, or a corner would hold the agent for ever
            self._side = Action.TURN_LEFT if ways[0] > ways[2] else Action.TURN_RIGHT
        return self._side


class ReadAndLookAgent(BlindAgent):
    """Reads like the blind agent, but turns away from what blocks its way and does not walk into walls."""

    sensors: frozenset[Sensor] = frozenset({"depth"})

    def begin(self, episode: Episode, seed: int) -> None:
        super().begin(episode, seed)
        self._turns = 0

    def act_one(self, observation: Observation) -> Action:
        assert observation.depth is not None
        if self._plan and self._plan[0] == Action.MOVE_FORWARD and self._turns < 360 / _TURN_DEG:
            ways = free_ways(observation.depth)
            if ways[1] <= _BLOCKED_M:
                self._turns += 1
                return Action.TURN_LEFT if ways[0] > ways[2] else Action.TURN_RIGHT
        self._turns = 0
        return super().act_one(observation)


def plan(instruction: str) -> list[Action]:
    """Actions for the words of an English instruction alone; as many forward actions as the mean path has."""
    turns: list[tuple[float, bool]] = []  # degrees to turn before a clause is walked, and whether it is walked
    for clause in filter(None, map(str.strip, _CLAUSE.split(instruction.lower()))):
        side = _SIDE.search(clause)
        angle = 0.0
        if _AROUND.search(clause):
            angle = 180.0
        elif side and not _BESIDE.search(clause) and not _STOP.search(clause):
            angle = (30.0 if _SLIGHT.search(clause) else 90.0) * (1.0 if side[1] == "left" else -1.0)
        walks = not _STOP.search(clause) and (angle == 0.0 or bool(_DOOR.search(clause)))
        turns.append((angle, walks))
    share = _MEAN_STEPS // max(1, sum(walks for _, walks in turns))
    actions: list[Action] = []
    for angle, walks in turns:
        turn = Action.TURN_LEFT if angle > 0 else Action.TURN_RIGHT
        actions += [turn] * round(abs(angle) / _TURN_DEG) + [Action.MOVE_FORWARD] * (share if walks else 0)
    return actions


def free_ways(depth: NDArray[np.float32]) -> tuple[float, float, float]:
    """Meters of free way to the left, ahead and to the right, from a (height, width) depth image."""
    height = depth.shape[0]
    band = depth[height // 3 : height * 5 // 6]
    left, ahead, right = np.array_split(band, 3, axis=1)
    return float(np.mean(left)), float(np.percentile(ahead, 2)), float(np.mean(right))
