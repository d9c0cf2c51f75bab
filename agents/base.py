"""Base class for agents that think about one episode at a time."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from vlnbench.interfaces import Action, Conventions, Episode, Observation, Scalar, Sensor


class EpisodeAgent:
    """Turns a one-episode agent into an `Agent`: every slot drives a copy of its own.

    Subclasses write `act_one` and, if they carry state, `begin`. The class attributes are defaults to override.
    """

    sensors: frozenset[Sensor] = frozenset()
    privileged: bool = False
    expects: Conventions = Conventions()
    identity: Mapping[str, Scalar] = {}

    def __init__(self) -> None:
        self._running: dict[int, EpisodeAgent] = {}

    def begin(self, episode: Episode, seed: int) -> None:
        """Start an episode."""

    def act_one(self, observation: Observation) -> Action:
        """The next action of the running episode."""
        raise NotImplementedError

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self._running[slot] = copy.copy(self)
        self._running[slot].begin(episode, seed)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        return {slot: self._running[slot].act_one(observation) for slot, observation in observations.items()}

    def watch(self, observations: Mapping[int, Observation]) -> None:
        """See observations on which somebody else acts. Nothing to do for agents that plan no further than a step
        and remember nothing."""

    def close(self) -> None:
        self._running.clear()
