"""An agent with an option of its own."""

from __future__ import annotations

from dataclasses import dataclass

from agents.base import EpisodeAgent
from vlnbench.interfaces import Action, Episode, Observation, Sensor
from vlnbench.rollout.agent_options import AgentOptions

CLEAR_M = 0.7


@dataclass(frozen=True, kw_only=True)
class LeftHandOptions(AgentOptions):
    """What `vlnbench eval --agent left-hand` takes beside what every agent takes."""

    patience: int = 60
    """Steps until it stops."""


class LeftHand(EpisodeAgent):
    """Walks while there is room ahead, turns left where there is none, and stops when it has had enough."""

    sensors: frozenset[Sensor] = frozenset({"depth"})
    options_type = LeftHandOptions

    def __init__(self, options: LeftHandOptions) -> None:
        super().__init__()
        self.patience = options.patience
        self.identity = {"patience": options.patience}  # what decides how it acts: another value, another run

    def begin(self, episode: Episode, seed: int) -> None:
        """Nothing is remembered of an episode."""

    def act_one(self, observation: Observation) -> Action:
        """The next action."""
        if observation.step >= self.patience:
            return Action.STOP
        assert observation.depth is not None
        height, width = observation.depth.shape
        ahead = observation.depth[height // 3 : height * 2 // 3, width * 2 // 5 : width * 3 // 5].min()
        return Action.MOVE_FORWARD if ahead > CLEAR_M else Action.TURN_LEFT
