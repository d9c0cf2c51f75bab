"""Agents as somebody new might write them: some correct, most of them wrong in one way each."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from agents.base import EpisodeAgent
from vlnbench.interfaces import Action, Conventions, Episode, Observation, Scalar, Sensor
from vlnbench.rollout.agent_options import AgentOptions

_MOVES = (Action.MOVE_FORWARD, Action.TURN_LEFT, Action.TURN_RIGHT)


def looked(observation: Observation, *others: int) -> Action:
    """A move that depends on what is seen and told, and on `others`."""
    assert observation.rgb is not None
    return _MOVES[(int(observation.rgb.sum()) + len(observation.instruction) + sum(others)) % 3]


class Whole:
    """A correct agent that keeps the sum of what it saw, for every slot."""

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    privileged = False
    expects = Conventions()

    def __init__(self) -> None:
        self.memory: dict[int, int] = {}
        self.seeds: dict[int, int] = {}

    @property
    def identity(self) -> Mapping[str, Scalar]:
        return {}

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self.memory[slot], self.seeds[slot] = 0, seed % 7

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        return {slot: self.choose(slot, seen) for slot, seen in observations.items()}

    def choose(self, slot: int, seen: Observation) -> Action:
        assert seen.rgb is not None
        self.memory[slot] += int(seen.rgb[0, 0, 0])
        return looked(seen, self.memory[slot], self.seeds[slot])

    def close(self) -> None:
        self.memory.clear()


class InSelf(EpisodeAgent):
    """A correct agent of one episode: a list of the constructor, which `begin` does not make anew."""

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    of_class: list[int] = []  # noqa: RUF012 - as people write it

    def __init__(self) -> None:
        self.history: list[int] = []

    def act_one(self, observation: Observation) -> Action:
        self.history.append(1)
        self.of_class.append(1)
        return looked(observation, len(self.history), len(self.of_class))


class OneMemory(Whole):
    def choose(self, slot: int, seen: Observation) -> Action:
        return super().choose(next(iter(self.memory)), seen)


class LeaksLater(Whole):
    """As long as an episode is young nothing is seen of the others."""

    def choose(self, slot: int, seen: Observation) -> Action:
        return looked(seen, self.memory[min(self.memory)] if seen.step > 5 else 0, super().choose(slot, seen))


class ManySlots(Whole):
    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        others = len(self.memory) if len(self.memory) >= 4 else 0
        return {slot: looked(seen, others, self.choose(slot, seen)) for slot, seen in observations.items()}


class TwoSlots(Whole):
    def choose(self, slot: int, seen: Observation) -> Action:
        return super().choose(slot % 3, seen) if slot % 3 in self.memory else super().choose(slot, seen)


class KeepsMemory(Whole):
    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self.memory[slot], self.seeds[slot] = self.memory.get(slot, 0), seed % 7


class ActsForAll(Whole):
    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        return dict.fromkeys(self.memory, Action.MOVE_FORWARD)


class ActsForOne(Whole):
    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        slot = next(iter(observations))
        return {slot: self.choose(slot, observations[slot])}


class Writes(Whole):
    def choose(self, slot: int, seen: Observation) -> Action:
        action = super().choose(slot, seen)
        assert seen.rgb is not None
        seen.rgb[:] //= 2
        return action


class Hashes(Whole):
    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        super().reset(slot, episode, seed)
        self.draws = random.Random(hash((episode.instruction, seed)))

    def choose(self, slot: int, seen: Observation) -> Action:
        return self.draws.choice(_MOVES)


class Unseeded(Whole):
    def choose(self, slot: int, seen: Observation) -> Action:
        return random.choice(_MOVES)


class SharedDraws(Whole):
    """Seeds one generator for all episodes."""

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        super().reset(slot, episode, seed)
        self.draws = random.Random(seed)

    def choose(self, slot: int, seen: Observation) -> Action:
        return self.draws.choice(_MOVES)


class KeepsFrames(Whole):
    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Any] = []

    def choose(self, slot: int, seen: Observation) -> Action:
        assert seen.rgb is not None
        self.frames.append(np.ascontiguousarray(seen.rgb).copy())
        return super().choose(slot, seen)


@dataclass(frozen=True, kw_only=True)
class Options(AgentOptions):
    threshold: float = 0.5
    """How much has to be seen."""
    rule: str = "left"
    """A rule."""


class Hides(Whole):
    """An option decides what it does, and its identity does not say so."""

    options_type = Options

    def __init__(self, options: Options | None = None) -> None:
        super().__init__()
        self.options = options or Options()


class Says(Hides):
    """Correct: its identity has what decides."""

    @property
    def identity(self) -> Mapping[str, Scalar]:
        return {"threshold": self.options.threshold, "rule": self.options.rule}


class NotScalar(Whole):
    @property
    def identity(self) -> Any:
        return {"sizes": (1, 2)}


class NoClose(Whole):
    def close(self) -> None:
        del self.memory


CORRECT = (Whole, InSelf, Says)
WRONG = {
    **dict.fromkeys(
        (OneMemory, LeaksLater, ManySlots, TwoSlots, KeepsMemory, ActsForAll, ActsForOne, Writes, SharedDraws),
        "test_a_slot_does_not_feel_its_neighbors",
    ),
    Hashes: "test_the_same_seed_gives_the_same_actions",
    Unseeded: "test_the_same_seed_gives_the_same_actions",
    KeepsFrames: "test_it_lets_go_of_what_it_saw",
    Hides: "test_options_that_change_what_it_does_are_in_its_identity",
    NotScalar: "test_its_identity_is_what_a_manifest_can_hold",
    NoClose: "test_closing_twice_is_harmless",
}
"""Each with the test that finds it."""
