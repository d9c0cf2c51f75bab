"""What all networks that act by chance do alike: what is drawn is recorded. See `training.family.policy`."""

from __future__ import annotations

import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.generate import Row
from agents.common.decoders.placeholders import IGNORED
from agents.common.decoders.sampling import Sampler
from agents.common.decoders.turns import Decoder, Turn
from vlnbench.interfaces import Action, Agent, Episode, Observation, Scalar, Sensor
from vlnbench.training.family.policy import Question, Recorded, Sampling
from vlnbench.training.family.trains import SetContent

FIRST_SLOT = 1_000_000
"""Slots of answers without an episode; those of simulators are numbered from 0."""


@dataclass
class Window:
    """Tokens of a window so far, labels of those that were drawn, and what each of its questions has shown."""

    ids: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    shown: list[Any] = field(default_factory=list)

    def add(self, ids: Sequence[int], *, drawn: bool) -> None:
        self.ids += ids
        self.labels += ids if drawn else [IGNORED] * len(ids)


@dataclass
class Walk:
    """What is recorded of an episode, or of the answer to a prompt, by its name. `last`: the latest answer."""

    name: str
    seed: int
    windows: list[Window] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    answers: int = 0
    formed: int = 0
    last: list[int] = field(default_factory=list)
    cut: bool = False

    def see(self, ids: Sequence[int], shown: Any, *, opens: bool = True) -> None:
        """Take in the tokens of a question and what it shows, as a window of its own or as the last one's next."""
        if opens:
            self.windows.append(Window())
        self.windows[-1].add(ids, drawn=False)
        self.windows[-1].shown.append(shown)


class Asks(Protocol):
    """What of a set can be asked: at each of `places` an answer whose actions are known."""

    @property
    def places(self) -> Sequence[int]: ...

    def question(self, place: int, rng: random.Random) -> Question: ...


class PlacesOfSets:
    """The places of several sets, numbered through; a `Questions`."""

    def __init__(self, sets: Iterable[Asks]) -> None:
        self._places = [(each, place) for each in sets for place in each.places]

    def __len__(self) -> int:
        return len(self._places)

    def question(self, index: int, seed: str) -> Question:
        asks, place = self._places[index]
        return asks.question(place, random.Random(seed))


class Recorder(ABC):
    """A `Policy`, of which a family says how its network is asked and what its samples are.

    Walks under way are known by slot, and all that have begun by episode and seed. Questions of a family have a
    `slot`.
    """

    at_once = sys.maxsize
    """Prompts that are answered side by side at most."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling, self._sampler = sampling, Sampler(sampling.temperature, sampling.top_p)
        self._walks: dict[int, Walk] = {}
        self._begun: dict[tuple[str, int], Walk] = {}
        self._decoder: Any = None

    # what a family says

    @abstractmethod
    def agent(self) -> Agent:
        """Acts in simulators, an `SampledActing` in front of the family's loop, which asks `run`."""

    @abstractmethod
    def decoder(self) -> Any:
        """What runs questions, with the network's weights as they are now."""

    @abstractmethod
    def asked(self, prompts: Mapping[int, Any]) -> list[Any]:
        """Prompts by their slots as questions to the decoder."""

    @abstractmethod
    def take_in(self, walk: Walk, question: Any) -> None:
        """Have the walk see what is new in a question that has been answered."""

    @abstractmethod
    def read(self, answer: Sequence[int]) -> tuple[Sequence[Action], bool]:
        """The actions of an answer, and whether it is of the expected form."""

    @abstractmethod
    def sample(self, window: Window) -> Any:
        """A window as a sample for `Trains.collate`."""

    @abstractmethod
    def asks(self, content: SetContent) -> Asks:
        """What of a set can be asked. Raises UsageError for one without actions to compare with."""

    def drop(self, slot: int) -> None:  # noqa: B027 - most decoders keep nothing
        """Forget what the decoder knows of a slot."""

    # what is alike

    def renew(self) -> None:
        self._walks.clear()
        self._begun.clear()
        self._decoder = self.decoder()

    def remember(self, slot: int, episode: Episode, seed: int) -> None:
        """Remember what is drawn in a slot from now on."""
        name = episode.episode_id
        self._walks[slot] = self._begun[name, seed] = Walk(name, seed)

    def run(self, questions: Sequence[Any]) -> list[list[int]]:
        """As the decoder's, by chance; what is drawn is recorded."""
        return self.drawn(self._decoder.run, questions)

    def drawn(self, run: Callable[[Sequence[Any]], list[list[int]]], questions: Sequence[Any]) -> list[list[int]]:
        """What `run` answers by the seeds of the walks, recorded."""
        for question in questions:
            walk = self._walks[question.slot]
            self._sampler.begin(question.slot, f"{walk.seed}/{walk.answers}")
        answers = run(questions)
        for question, answer in zip(questions, answers, strict=True):
            walk = self._walks[question.slot]
            self.take_in(walk, question)
            walk.windows[-1].add(answer, drawn=True)
            walk.log_probabilities += self._sampler.end(question.slot, len(answer))
            walk.answers += 1
            walk.formed += self.read(answer)[1]
            walk.last = answer
        return answers

    def recorded(self, episode_id: str, seed: int) -> Recorded:
        walk = self._begun.pop((episode_id, seed))
        if not walk.answers:
            raise KeyError(episode_id)
        return self._recorded(walk)

    def is_used_up(self, slot: int) -> bool:
        """Whether the walk has had all answers that it may have; it counts as cut then."""
        walk, cap = self._walks[slot], self._sampling.turn_cap
        walk.cut = cap is not None and walk.answers >= cap
        return walk.cut

    def questions(self, sets: Sequence[SetContent]) -> PlacesOfSets:
        return PlacesOfSets([self.asks(content) for content in sets])

    def answer(self, prompts: Sequence[Any], seeds: Sequence[int]) -> list[Recorded]:
        asked = list(zip(prompts, seeds, strict=True))
        chunks = (asked[first : first + self.at_once] for first in range(0, len(asked), self.at_once))
        return [recorded for chunk in chunks for recorded in self._answer(chunk)]

    def _answer(self, asked: Sequence[tuple[Any, int]]) -> list[Recorded]:
        """Answers to some prompts, whose walks are forgotten at once."""
        for number, (_, seed) in enumerate(asked):
            self._walks[FIRST_SLOT + number] = Walk(f"prompt {number}", seed)
        slots = range(FIRST_SLOT, FIRST_SLOT + len(asked))
        answers = self.run(self.asked({slot: prompt for slot, (prompt, _) in zip(slots, asked, strict=True)}))
        found = []
        for slot, answer in zip(slots, answers, strict=True):
            self.drop(slot)
            found.append(self._recorded(self._walks.pop(slot), tuple(self.read(answer)[0])))
        return found

    def _recorded(self, walk: Walk, actions: tuple[Action, ...] = ()) -> Recorded:
        return Recorded(
            samples=tuple(self.sample(window) for window in walk.windows),
            tokens=tuple(sum(label != IGNORED for label in window.labels) for window in walk.windows),
            log_probabilities=tuple(walk.log_probabilities),
            answers=walk.answers,
            formed=walk.formed,
            actions=actions,
            cut=walk.cut,
        )


class TurnRecorder(Recorder):
    """Of networks that `turns.Decoder` runs. Prompts are ids with placeholders, and images."""

    at_once = 16

    def drop(self, slot: int) -> None:
        self._decoder.drop(slot)

    def asked(self, prompts: Mapping[int, tuple[list[int], Tensor]]) -> list[Turn]:
        return [Turn(slot, *prompt, opens_window=True) for slot, prompt in prompts.items()]

    def choose(self, rows: Sequence[Row], logits: Tensor) -> list[list[int]]:
        """As `Sampler.choose`."""
        return self._sampler.choose(rows, logits)


class QuestionRecorder(TurnRecorder):
    """The same where every answer is a window of its own.

    `prompts.read` gives the actions of an answer, None for one that cannot be read, which counts as `instead`.
    """

    def __init__(
        self, model: Any, settings: GenerationSettings, prompts: Any, sampling: Sampling, instead: Action
    ) -> None:
        super().__init__(sampling)
        self._model, self._settings, self._prompts, self._instead = model, settings, prompts, instead

    def decoder(self) -> Decoder:
        longest = self._sampling.answer_tokens
        return Decoder(self._model, self._settings, max_new_tokens=longest, choose=self.choose, keeps=False)

    def take_in(self, walk: Walk, question: Turn) -> None:
        walk.see(question.input_ids, question.images)

    def read(self, answer: Sequence[int]) -> tuple[Sequence[Action], bool]:
        actions = self._prompts.read(answer)
        return actions or (self._instead,), actions is not None and answer[-1] in self._settings.eos


class SampledActing:
    """To be put before an episode loop: it acts by chance and is remembered by `_recorder`."""

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    privileged = False
    identity: Mapping[str, Scalar] = {}
    _recorder: Recorder

    def is_asked(self, slot: int) -> bool:
        """Whether the slot's next action takes an answer: not if the loop has a queue for it with some left."""
        return not getattr(getattr(self, "_slots", {}).get(slot), "queue", ())

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self._recorder.remember(slot, episode, seed)
        super().reset(slot, episode, seed)  # type: ignore[misc]  # the loop's

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """As the loop's; a walk that has had all of its answers stops."""
        asked = [slot for slot in observations if self.is_asked(slot)]
        ended = {slot: Action.STOP for slot in asked if self._recorder.is_used_up(slot)}
        left = {slot: seen for slot, seen in observations.items() if slot not in ended}
        acted: dict[int, Action] = super().act(left) if left else {}  # type: ignore[misc]  # the loop's
        return ended | acted
