"""Scripted agents: lower bounds, oracles and a replay. They look at no camera."""

from __future__ import annotations

import random

from agents.base import EpisodeAgent
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Episode, Observation, Sensor


class StopAgent(EpisodeAgent):
    """Stops at once."""

    def act_one(self, observation: Observation) -> Action:
        return Action.STOP


class ForwardAgent(EpisodeAgent):
    """Walks 37 steps straight ahead and stops: the mean length of R2R-CE's ground truth (VLN-CE)."""

    def act_one(self, observation: Observation) -> Action:
        return Action.MOVE_FORWARD if observation.step < 37 else Action.STOP


class RandomAgent(EpisodeAgent):
    """Draws actions with VLN-CE's training frequencies, seeded per episode."""

    _ACTIONS = (Action.STOP, Action.MOVE_FORWARD, Action.TURN_LEFT, Action.TURN_RIGHT)
    _WEIGHTS = (0.02, 0.68, 0.15, 0.15)

    def begin(self, episode: Episode, seed: int) -> None:
        self._random = random.Random(seed)

    def act_one(self, observation: Observation) -> Action:
        return self._random.choices(self._ACTIONS, self._WEIGHTS)[0]


class ShortestPathAgent(EpisodeAgent):
    """Oracle: does what the simulator's shortest-path follower would do. Upper bound of success."""

    sensors: frozenset[Sensor] = frozenset({"oracle_action"})

    def act_one(self, observation: Observation) -> Action:
        if observation.oracle_action is None:
            raise ValueError("the environment offers no oracle action for this episode")
        return observation.oracle_action


class GroundTruthReplayAgent(EpisodeAgent):
    """Replays the recorded actions of the dataset's ground-truth file, eyes closed."""

    privileged = True

    def begin(self, episode: Episode, seed: int) -> None:
        if episode.ground_truth is None:
            raise UsageError(
                f"episode {episode.episode_id}: no ground-truth actions; gt-replay needs the split's _gt file"
            )
        self._actions = episode.ground_truth.actions

    def act_one(self, observation: Observation) -> Action:
        return Action(self._actions[observation.step]) if observation.step < len(self._actions) else Action.STOP
