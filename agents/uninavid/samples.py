"""Training samples of Uni-NaVid: all frames of a walk so far and the next four actions, and other conversations.

Sets are walks as they are collected here, or records in the published layout, about videos, pictures or nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.policy import Recorder, Walk, Window
from agents.common.decoders.turns import Decoder
from agents.common.packing.frames import Frame, Known
from agents.common.packing.samples import Sample
from agents.common.remembering import Answers, Question
from agents.common.sets.conversations import TAG
from agents.common.sets.trajectories import Trajectory, read_trajectories
from agents.common.sets.videos import Record, read_records
from agents.common.sight.videos import VideoReader
from agents.common.towers.eva import network_input
from agents.uninavid.agent import SHOWN, WORDS, PolicyAgent, Prompts, actions_of, question_text
from agents.uninavid.network import UniNaVid
from agents.uninavid.options import PUBLISHED_SET, UniNaVidTraining
from vlnbench.data.sets import CONVERSATIONS, TRAJECTORIES, holds_questions
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.training.family import policy as contract
from vlnbench.training.family.policy import Sampling
from vlnbench.training.family.trains import SetContent

ANSWERED = 4
"""Actions of an answer."""
NAMES = {action: word for word, action in WORDS.items()}
NAVIGATES = "NAV_ID"
"""In the ids of published records whose frames are augmented."""


class Place(NamedTuple):
    """A question along a walk: walk and instruction by position, and the step."""

    walk: int
    instruction: int
    step: int


@dataclass(frozen=True)
class UniNaVidSet:
    """Records or walks; a `SetContent`. left_out: see `LeavesOut`."""

    file: Path
    records: tuple[Record, ...] = ()
    walks: tuple[Trajectory, ...] = ()
    places: tuple[Place, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def windows(self) -> int:
        return len(self.records) + len(self.places)

    @property
    def counts(self) -> Mapping[str, int]:
        """Of each kind how many."""
        found = {
            "trajectories": len(self.walks),
            "instructions": sum(len(each.instructions) for each in self.walks),
            "questions along them": len(self.places),
            "records": len(self.records),
        }
        return {name: count for name, count in found.items() if count}

    def texts(self) -> Iterator[str]:
        for record in self.records:
            yield from (text.replace(TAG, "") for turn in record.turns for text in turn)
        for walk in self.walks:
            yield from walk.instructions

    def lengths(self) -> list[tuple[int, ...]]:
        """(frames, characters) of every sample; how many frames a video has is not known before it is read."""
        written = [(0, sum(map(len, (text for turn in each.turns for text in turn)))) for each in self.records]
        along = [
            (each.step + 1, len(self.walks[each.walk].instructions[each.instruction])) for each in self.places
        ]
        return [*written, *along]


def read_set(folder: Path, every: int) -> UniNaVidSet:
    """A set's folder; walks are asked every so many steps. Raises UsageError for one that is missing or broken."""
    published = folder / PUBLISHED_SET
    if holds_questions(folder) or published.is_file():
        file = published if published.is_file() else folder / CONVERSATIONS
        records, left_out = read_records(file, odd_answer, " ".join(["forward"] * ANSWERED))
        return UniNaVidSet(file, tuple(records), left_out=left_out)
    walks = tuple(read_trajectories(folder, shortest=1))
    places = tuple(
        Place(number, instruction, step)
        for number, walk in enumerate(walks)
        for instruction in range(len(walk.instructions))
        for step in range(0, len(walk.actions), every)
        if step not in walk.strays
    )
    return UniNaVidSet(folder / TRAJECTORIES, walks=walks, places=places)


def odd_answer(record: Record) -> str | None:
    """An answer to how to go on that has other words than actions, or none; None where there is no such."""
    asked = (told for question, told in record.turns if SHOWN in question)
    return next((told for told in asked if not told.split() or not set(told.split()) <= WORDS.keys()), None)


def answer(walk: Trajectory, step: int) -> str:
    """The next four actions; after the end, stop. Where somebody else acted than who is learned from, it ends."""
    words = [NAMES[walk.taught[step]]]
    for before in range(step, step + ANSWERED - 1):
        end = before + 1 >= len(walk.taught)
        if not end and (walk.taught[before] != walk.actions[before] or before + 1 in walk.strays):
            break
        words.append(NAMES[Action.STOP if end else walk.taught[before + 1]])
    return " ".join(words)


class ConversationDataset:
    """The samples of a set; see `Samples`."""

    def __init__(
        self, content: UniNaVidSet, prompts: Prompts, size: int, options: UniNaVidTraining, known: Known | None
    ) -> None:
        self._content, self._prompts, self._reader = content, prompts, VideoReader(size, known)
        self._augmented, self._longest = options.augment, options.longest_text

    def __len__(self) -> int:
        return self._content.windows

    def sample(self, index: int, rng: random.Random) -> Sample:
        """`rng` draws the frames that are shown, their jitter, and where later turns have their placeholder."""
        if index < len(self._content.records):
            record = self._content.records[index]
            shown = self._seen(record, rng)
            turns, video = _tagged(record, rng), record.is_video
        else:
            place = self._content.places[index - len(self._content.records)]
            walk = self._content.walks[place.walk]
            shown = self._reader.pictures(walk.frames_at(range(place.step + 1)), rng, self._augmented)
            asked = question_text(walk.instructions[place.instruction]).replace(TAG, "")
            turns, video = [(f"{TAG}\n{asked}", answer(walk, place.step))], True
        ids, labels = self._prompts.lesson(turns, video)
        return Sample(ids[: self._longest], labels[: self._longest], shown)

    @property
    def places(self) -> Sequence[int]:
        """Samples with actions that answers can be compared with: those along walks."""
        return range(len(self._content.records), len(self))

    def question(self, index: int, rng: random.Random) -> contract.Question:
        """Token ids and frames of a question as the agent puts it, and what the expert did. Nothing is drawn."""
        place = self._content.places[index - len(self._content.records)]
        walk = self._content.walks[place.walk]
        frames = self._reader.crops(walk.frames_at(range(place.step + 1)))
        expected = tuple(WORDS[word] for word in answer(walk, place.step).split())
        return contract.Question((self._prompts.question(walk.instructions[place.instruction]), frames), expected)

    def _seen(self, record: Record, rng: random.Random) -> Tensor | list[Frame]:
        if record.file is None:
            return self._reader.nothing()
        if record.is_video:
            return self._reader.video(record.file, rng, self._augmented and NAVIGATES in record.name)
        return self._reader.picture(record.file, rng)


def _tagged(record: Record, rng: random.Random) -> list[tuple[str, str]]:
    """Turns of which each shows what the record is about: the first in front, others in front or behind."""
    if record.file is None:
        return list(record.turns)
    turns = [(text.replace(TAG, "").strip(), told) for text, told in record.turns]
    first = (f"{TAG}\n{turns[0][0]}", turns[0][1])
    return [first, *((f"{TAG}\n{a}" if rng.randint(0, 1) == 0 else f"{a}\n{TAG}", told) for a, told in turns[1:])]


class UniNaVidPolicy(Recorder):
    """A `Policy`; see there. Every answer is a window of its own, which shows all frames so far."""

    at_once = 16

    def __init__(
        self,
        model: UniNaVid,
        settings: GenerationSettings,
        prompts: Prompts,
        options: UniNaVidTraining,
        sampling: Sampling,
    ) -> None:
        super().__init__(sampling)
        self._model, self._settings, self._prompts, self._options = model, settings, prompts, options
        self._frames: dict[int, list[NDArray[np.uint8]]] = {}

    def agent(self) -> PolicyAgent:
        return PolicyAgent(self._prompts, self, self._model.config.vision.image_size)

    def decoder(self) -> Answers:
        longest, choose = self._sampling.answer_tokens, self._sampler.choose
        decoder = Decoder(self._model, self._settings, max_new_tokens=longest, choose=choose, keeps=False)
        return Answers(self._model, decoder, None)

    def begin(self, slot: int, seed: int) -> None:
        """As of `Answers`."""
        self._decoder.begin(slot, seed)
        self._frames[slot] = []

    def drop(self, slot: int) -> None:
        del self._frames[slot], self._decoder.memories[slot]

    def asked(self, prompts: Mapping[int, Any]) -> list[Question]:
        for slot in prompts:
            self.begin(slot, 0)
        return [Question(slot, *prompt) for slot, prompt in prompts.items()]

    def take_in(self, walk: Walk, question: Question) -> None:
        self._frames[question.slot] += question.frames
        walk.see(question.ids, list(self._frames[question.slot]))

    def read(self, answer: Sequence[int]) -> tuple[Sequence[Action], bool]:
        actions = actions_of(self._prompts.text(answer), ANSWERED)
        return actions or (Action.STOP,), actions is not None and answer[-1] in self._settings.eos

    def sample(self, window: Window) -> Sample:
        return Sample(window.ids, window.labels, network_input(*window.shown))

    def asks(self, content: SetContent) -> ConversationDataset:
        assert isinstance(content, UniNaVidSet)
        if not content.places:
            raise UsageError(
                f"{content.file}: has no walks, and so no actions that answers could be compared with"
            )
        size = self._model.config.vision.image_size
        return ConversationDataset(content, self._prompts, size, self._options, None)
