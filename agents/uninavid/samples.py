"""Training samples of Uni-NaVid: all frames of a walk so far and the next four actions, and other conversations.

Sets are walks as they are collected here, or records in the published layout, about videos, pictures or nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.common.packing.frames import Frame, Known, frame_key, pack
from agents.common.sets.conversations import TAG
from agents.common.sets.trajectories import Trajectory, read_trajectories
from agents.common.sets.videos import Record, frames_of, read_records
from agents.common.sight.pictures import content_of, decoded
from agents.common.towers.eva import crop, network_input
from agents.uninavid.agent import WORDS, Prompts, question_text
from agents.uninavid.options import UniNaVidTraining
from vlnbench.data.sets import CONVERSATIONS, TRAJECTORIES, holds_questions
from vlnbench.interfaces import Action

ANSWERED = 4
"""Actions of an answer."""
NAMES = {action: word for word, action in WORDS.items()}
NAVIGATES = "NAV_ID"
"""In the ids of published records whose frames are augmented."""
JITTER, DROPPED, DOUBLED, LAST_DOUBLED = 0.05, 0.1, 0.03, 0.06
NOTHING = frame_key(b"nothing")
REMEDY = "extract it again"


@dataclass(frozen=True, slots=True)
class Sample:
    """A conversation. input_ids: with placeholders. labels: ids, `IGNORED` where the loss does not look. images:
    float32 (frames, 3, size, size), the current one last; or as many frames with keys, where features are kept."""

    input_ids: list[int]
    labels: list[int]
    images: Tensor | list[Frame]


class Place(NamedTuple):
    """A question along a walk: walk and instruction by position, and the step."""

    walk: int
    instruction: int
    step: int


@dataclass(frozen=True)
class UniNaVidSet:
    """Records or walks; a `SetContent`."""

    file: Path
    records: tuple[Record, ...]
    lost: int
    walks: tuple[Trajectory, ...]
    places: tuple[Place, ...]

    @property
    def windows(self) -> int:
        return len(self.records) + len(self.places)

    @property
    def counts(self) -> Mapping[str, int]:
        """Of each kind how many."""
        found = {
            "trajectories": len(self.walks),
            "questions along them": len(self.places),
            "records": len(self.records),
        }
        return found | ({"records without their file, left out": self.lost} if self.lost else {})

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
    if holds_questions(folder):
        records, lost = read_records(folder)
        return UniNaVidSet(folder / CONVERSATIONS, tuple(records), lost, (), ())
    walks = tuple(read_trajectories(folder, shortest=1))
    places = tuple(
        Place(number, instruction, step)
        for number, walk in enumerate(walks)
        for instruction in range(len(walk.instructions))
        for step in range(0, len(walk.actions), every)
        if step not in walk.strays
    )
    return UniNaVidSet(folder / TRAJECTORIES, (), 0, walks, places)


def answer(walk: Trajectory, step: int) -> str:
    """The next four actions; after the end, stop. Where somebody else acted than who is learned from, it ends."""
    words = [NAMES[walk.taught[step]]]
    for before in range(step, step + ANSWERED - 1):
        end = before + 1 >= len(walk.taught)
        if not end and (walk.taught[before] != walk.actions[before] or before + 1 in walk.strays):
            break
        words.append(NAMES[Action.STOP if end else walk.taught[before + 1]])
    return " ".join(words)


def drawn_frames(count: int, rng: random.Random) -> list[int]:
    """Which of a video's frames are shown: a few are left out, never the last, and a few are there twice."""
    left_out = rng.randint(0, math.ceil(DROPPED * (count - 1)))
    found: list[int] = []
    for number in [*sorted(rng.sample(range(count - 1), count - 1 - left_out)), count - 1]:
        found.append(number)
        if rng.random() < DOUBLED or (number == count - 1 and rng.random() < LAST_DOUBLED):
            found.append(number)
    return found


def jittered(frame: NDArray[np.uint8], draws: np.random.RandomState) -> NDArray[np.uint8]:
    """A frame with other brightness, contrast and saturation, each at times; rounded down, as published."""
    for kind in ("brightness", "contrast", "saturation"):
        if draws.rand() < JITTER:
            factor = draws.uniform(0.8, 1.2)
            colors = frame.astype(np.float32)
            mean: Any = 0.0
            if kind != "brightness":
                mean = colors.mean(axis=(0, 1) if kind == "contrast" else 2, keepdims=True)
            frame = np.clip((colors - mean) * factor + mean, 0, 255).astype(np.uint8)
    return frame


class ConversationDataset:
    """The samples of a set; see `Samples`."""

    def __init__(
        self, content: UniNaVidSet, prompts: Prompts, size: int, options: UniNaVidTraining, known: Known | None
    ) -> None:
        self._content, self._prompts, self._size, self._known = content, prompts, size, known
        self._augmented, self._longest = options.augment, options.longest_text

    def __len__(self) -> int:
        return self._content.windows

    def sample(self, index: int, rng: random.Random) -> Sample:
        """`rng` draws the frames that are shown, their jitter, and where later turns have their placeholder."""
        if index < len(self._content.records):
            record = self._content.records[index]
            shown = self._shown_of(record, rng)
            turns, video = _tagged(record, rng), record.is_video
        else:
            place = self._content.places[index - len(self._content.records)]
            walk = self._content.walks[place.walk]
            shown = self._pictures(walk.frames_at(range(place.step + 1)), rng, self._augmented)
            asked = question_text(walk.instructions[place.instruction]).replace(TAG, "")
            turns, video = [(f"{TAG}\n{asked}", answer(walk, place.step))], True
        ids, labels = self._prompts.lesson(turns, video)
        return Sample(ids[: self._longest], labels[: self._longest], shown)

    def _shown_of(self, record: Record, rng: random.Random) -> Tensor | list[Frame]:
        if record.file is None:
            nothing = torch.zeros(3, self._size, self._size)
            features = None if self._known is None else self._known(NOTHING)
            frame = Frame(NOTHING, features, None if features is not None else nothing)
            return nothing[None] if self._known is None else [frame]
        if not record.is_video:
            return self._pictures([record.file], rng, augmented=False)
        path, content = record.file, content_of(record.file, REMEDY) if self._known else b""
        frames = [
            (lambda number=number: content + b"%d" % number, lambda number=number: frames_of(path)[number])
            for number in range(len(frames_of(path)))
        ]
        return self._read(frames, rng, self._augmented and NAVIGATES in record.name)

    def _pictures(self, paths: Sequence[Path], rng: random.Random, augmented: bool) -> Tensor | list[Frame]:
        def pair(path: Path) -> tuple[Callable[[], bytes], Callable[[], NDArray[np.uint8]]]:
            return (
                lambda: content_of(path, REMEDY),
                lambda: decoded(path, lambda image: np.asarray(image.convert("RGB")), REMEDY),
            )

        return self._read([pair(path) for path in paths], rng, augmented)

    def _read(
        self,
        frames: Sequence[tuple[Callable[[], bytes], Callable[[], NDArray[np.uint8]]]],
        rng: random.Random,
        augmented: bool,
    ) -> Tensor | list[Frame]:
        """Frames of which are given the content, for a key, and what they show."""
        chosen = drawn_frames(len(frames), rng) if augmented and len(frames) > 1 else range(len(frames))
        if self._known is not None:
            return [self._keyed(*frames[number], self._known) for number in chosen]
        if not augmented or len(frames) == 1:
            return network_input([crop(frames[number][1](), self._size) for number in chosen])
        draws = np.random.RandomState(rng.getrandbits(32))
        return network_input([crop(jittered(frames[number][1](), draws), self._size) for number in chosen])

    def _keyed(
        self, content: Callable[[], bytes], picture: Callable[[], NDArray[np.uint8]], known: Known
    ) -> Frame:
        key = frame_key(content())
        features = known(key)
        seen = None if features is not None else network_input([crop(picture(), self._size)])[0]
        return Frame(key, features, seen)


def _tagged(record: Record, rng: random.Random) -> list[tuple[str, str]]:
    """Turns of which each shows what the record is about: the first in front, others in front or behind."""
    if record.file is None:
        return list(record.turns)
    turns = [(text.replace(TAG, "").strip(), told) for text, told in record.turns]
    first = (f"{TAG}\n{turns[0][0]}", turns[0][1])
    return [first, *((f"{TAG}\n{a}" if rng.randint(0, 1) == 0 else f"{a}\n{TAG}", told) for a, told in turns[1:])]


def collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as the arguments of `UniNaVid.forward`, which pads them itself.

    Frames with keys are packed; whoever has the features puts those in their place.
    """
    keyed = [sample.images for sample in samples if isinstance(sample.images, list)]
    return {
        "input_ids": [sample.input_ids for sample in samples],
        "images": pack(keyed) if keyed else [sample.images for sample in samples],
        "labels": [sample.labels for sample in samples],
    }
