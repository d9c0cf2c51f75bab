"""Walks of networks that act by chance, remembered while they go on; see `training.family.policy.Policy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from agents.common.decoders.sampling import Sampler
from vlnbench.interfaces import Action, Episode, Observation, Scalar, Sensor
from vlnbench.training.family.policy import Recorded, Sampling

FIRST_SLOT = 1_000_000
"""Slots of answers without an episode; those of simulators are numbered from 0."""


@dataclass
class Walk:
    """What is recorded of an episode or of one answer; see `Recorded`. name: of the episode, or of the prompt."""

    name: str
    seed: int
    chances: list[float] = field(default_factory=list)
    answers: int = 0
    formed: int = 0
    actions: tuple[Action, ...] = ()
    cut: bool = False

    def windows(self) -> list[tuple[Any, int]]:
        """Samples, and how many tokens were drawn in each."""
        raise NotImplementedError

    def recorded(self) -> Recorded:
        windows = self.windows()
        return Recorded(
            samples=tuple(sample for sample, _ in windows),
            tokens=tuple(count for _, count in windows),
            chances=tuple(self.chances),
            answers=self.answers,
            formed=self.formed,
            actions=self.actions,
            cut=self.cut,
        )


W = TypeVar("W", bound=Walk)


class Walks(Generic[W]):
    """The walks of a policy: those under way by slot, and all that have begun by episode and seed."""

    def __init__(self, kind: Callable[[str, int], W], sampling: Sampling) -> None:
        self._kind, self._turn_cap = kind, sampling.turn_cap
        self._sampler = Sampler(sampling.temperature, sampling.top_p)
        self._walks: dict[int, W] = {}
        self._begun: dict[tuple[str, int], W] = {}

    def forget(self) -> None:
        """Drop all of them."""
        self._walks.clear()
        self._begun.clear()

    def remember(self, slot: int, episode: Episode, seed: int) -> None:
        """Remember what is drawn in a slot from now on."""
        name = episode.episode_id
        self._walks[slot] = self._begun[name, seed] = self._kind(name, seed)

    def drawn(self, run: Callable[[list[Any]], list[list[int]]], questions: list[Any]) -> list[list[int]]:
        """What `run` answers to questions, each of which has a `slot`: by the seeds of the walks, and recorded."""
        for question in questions:
            walk = self._walks[question.slot]
            self._sampler.begin(question.slot, f"{walk.seed}/{walk.answers}")
        answers = run(questions)
        for question, answer in zip(questions, answers, strict=True):
            self._record(question, answer)
        return answers

    def _record(self, question: Any, answer: list[int]) -> None:
        raise NotImplementedError

    def recorded(self, episode_id: str, seed: int) -> Recorded:
        return self._begun.pop((episode_id, seed)).recorded()

    def is_used_up(self, slot: int) -> bool:
        """Whether the walk has had all answers that it may have; it counts as cut then."""
        walk, cap = self._walks[slot], self._turn_cap
        walk.cut = cap is not None and walk.answers >= cap
        return walk.cut


class ActsByChance:
    """To be put before an episode loop: it acts by chance and is remembered by `_policy`."""

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    privileged = False
    identity: Mapping[str, Scalar] = {}
    _policy: Walks[Any]

    def asks(self, slot: int) -> bool:
        """Whether the slot's next action takes an answer: the loop has a queue of actions for each in `_slots`."""
        return not self._slots[slot].queue  # type: ignore[attr-defined]  # the loop's

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self._policy.remember(slot, episode, seed)
        super().reset(slot, episode, seed)  # type: ignore[misc]  # the loop's

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """As the loop's; a walk that has had all of its answers stops."""
        ended = {slot: Action.STOP for slot in observations if self.asks(slot) and self._policy.is_used_up(slot)}
        left = {slot: seen for slot, seen in observations.items() if slot not in ended}
        acted: dict[int, Action] = super().act(left) if left else {}  # type: ignore[misc]  # the loop's
        return ended | acted
