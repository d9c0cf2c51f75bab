"""Training samples of NaVILA, a question and its answer each, and what it draws when it learns from rewards.

Sets lie in its own layout, annotations.json with `video_id`, `frames` (oldest first, the current one last), `q`
and `a`, or are walks as they are collected here, of which every run of like actions is a question.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agents.common.decoders.policy import QuestionRecorder, Window
from agents.common.packing.frames import Known as KnownFrames
from agents.common.packing.samples import Sample
from agents.common.sets.trajectories import BELOW, Trajectory, read_trajectories, stays_below
from agents.common.sight.reader import FrameReader
from agents.navila.agent import BLACK, PolicyAgent, Prompts, actions_of, chosen, sentence
from vlnbench.data.sets import TRAJECTORIES, read_list
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.training.family import policy as contract
from vlnbench.training.family.trains import SetContent

ROOTS = ("train", "raw_frames")
"""Where published sets have their frames."""
LONGEST_RUN = 3
"""Like actions that one sentence says: the published answers are of up to 75 cm or 45 degrees."""


class Asked(NamedTuple):
    """What one sample is made of: files of frames, None for black ones; an answer, None: nothing is learned.
    described: the instruction is the answer."""

    instruction: str
    frames: tuple[Path | None, ...]
    answer: str | None
    described: bool = False


class Place(NamedTuple):
    """A question along a walk: walk and instruction by position, step, and how many like actions follow; none
    where the walk is described."""

    walk: int
    instruction: int
    step: int
    run: int


@dataclass(frozen=True)
class NaVILASet:
    """A set, of samples that others wrote or of walks; a `SetContent`."""

    file: Path
    shown: int
    written: tuple[Asked, ...]
    walks: tuple[Trajectory, ...]
    places: tuple[Place, ...]

    @property
    def windows(self) -> int:
        return len(self.written) + len(self.places)

    @property
    def counts(self) -> Mapping[str, int]:
        """Of each kind how many."""
        lost = sum(each.answer is None for each in self.written)
        found = {
            "trajectories": len(self.walks),
            "instructions": sum(len(each.instructions) for each in self.walks),
            "questions": len(self.written),
        }
        return found | ({"questions whose frames are missing, which teach nothing": lost} if lost else {})

    def texts(self) -> Iterator[str]:
        for each in self.written:
            yield each.instruction
        for walk in self.walks:
            yield from walk.instructions

    def lengths(self) -> list[tuple[int, ...]]:
        """(characters of the instruction,) of every sample: all show as many frames."""
        return [(len(self.instruction(index)),) for index in range(self.windows)]

    def instruction(self, index: int) -> str:
        """That of a sample."""
        if self.written:
            return self.written[index].instruction
        place = self.places[index]
        return self.walks[place.walk].instructions[place.instruction]

    def answer(self, index: int) -> str | None:
        """The sentence that a sample teaches; None for one that teaches none."""
        if self.written:
            return self.written[index].answer
        place = self.places[index]
        return sentence(self.walks[place.walk].taught[place.step], place.run) if place.run else None

    def asked(self, index: int) -> Asked:
        """What a sample is made of."""
        if self.written:
            return self.written[index]
        place = self.places[index]
        walk = self.walks[place.walk]
        steps = chosen(place.step + 1, self.shown)
        known = walk.frames_at([step for step in steps if step != BLACK])
        frames = (*[None] * steps.count(BLACK), *known)
        return Asked(self.instruction(index), frames, self.answer(index), described=not place.run)


def read_set(folder: Path, shown: int, described: bool = False) -> NaVILASet:
    """A set's folder; a question shows so many frames. described: its walks are described, as they are walked.

    Raises UsageError for one that is missing, empty or broken.
    """
    file = folder / TRAJECTORIES
    records = read_list(file, "samples or walks", f"expected a set with {TRAJECTORIES}")
    if isinstance(records[0], dict) and "video_id" in records[0]:
        root = next((folder / name for name in ROOTS if (folder / name).is_dir()), folder)
        there: dict[Path, bool] = {}
        written = [_written(file, number, each, root, shown, there) for number, each in enumerate(records)]
        if not any(there.values()):
            raise UsageError(f"{file}: none of its frames is below {root}; extract the image archives")
        return NaVILASet(file, shown, tuple(written), (), ())
    walks = read_trajectories(folder, shortest=1)
    places = [
        Place(index, instruction, step, run)
        for index, walk in enumerate(walks)
        for instruction in range(len(walk.instructions))
        for step, run in ([(len(walk.actions) - 1, 0)] if described else runs(walk))
    ]
    return NaVILASet(file, shown, (), tuple(walks), tuple(places))


def _written(file: Path, number: int, record: Any, root: Path, shown: int, there: dict[Path, bool]) -> Asked:
    """A sample that others wrote. there: of the files that were looked for, whether they are there."""

    def fail(name: str, expected: str) -> UsageError:
        return UsageError(f"{file}: record {number}: field {name!r}: expected {expected}")

    if not isinstance(record, dict) or record.get("video_id") is None:
        raise UsageError(f"{file}: record {number}: expected an object with video_id, frames, q and a")
    names, asked, answer = (record.get(name) for name in ("frames", "q", "a"))
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise fail("frames", "a list of paths of images")
    if not isinstance(asked, str) or not isinstance(answer, str):
        raise fail("a" if isinstance(asked, str) else "q", "a text")
    picked = [names[place] if place != BLACK else None for place in chosen(len(names), shown)]
    if (outside := next((name for name in picked if name and not stays_below(name)), None)) is not None:
        raise fail("frames", f"{BELOW}, found {outside!r}")
    frames = tuple(None if name is None else root / name for name in picked)
    for path in frames:
        if path is not None and path not in there:
            there[path] = path.is_file()
    if not all(path is None or there[path] for path in frames):
        return Asked(asked, (None,) * shown, None)
    return Asked(asked, frames, answer)


def runs(walk: Trajectory) -> Iterator[tuple[int, int]]:
    """Steps at which a walk is asked, and how many like actions each answer says; strays are no examples.

    Where somebody else acted than who is learned from, an answer ends with the first step that was done otherwise.
    """
    step, taught = 0, walk.taught
    while step < len(taught):
        end = step + 1
        while (
            end < len(taught)
            and end - step < LONGEST_RUN
            and taught[step] is not Action.STOP
            and taught[end] == taught[step] == walk.actions[end - 1]
            and end not in walk.strays
        ):
            end += 1
        if step not in walk.strays:
            yield step, end - step
        step = end


class QuestionDataset:
    """The questions of a set; see `Samples`."""

    def __init__(self, content: NaVILASet, prompts: Prompts, size: int, known: KnownFrames | None = None) -> None:
        self._content, self._prompts = content, prompts
        self._reader = FrameReader(size, known=known)

    def __len__(self) -> int:
        return self._content.windows

    @property
    def places(self) -> Sequence[int]:
        """Questions with actions that answers can be compared with."""
        return [index for index in range(len(self)) if self._expected(index)]

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Nothing is drawn."""
        asked = self._content.asked(index)
        images = self._reader.behind_black(asked.frames, rng)
        if asked.described:
            return Sample(*self._prompts.description(asked.instruction), images)
        return Sample(*self._prompts.lesson(asked.instruction, asked.answer), images)

    def question(self, index: int, rng: random.Random) -> contract.Question:
        """Token ids and frames of a question as the agent puts it, and what the expert did. Nothing is drawn."""
        asked = self._content.asked(index)
        ids = self._prompts.question(asked.instruction)
        return contract.Question((ids, self._reader.behind_black(asked.frames, rng)), self._expected(index))

    def _expected(self, index: int) -> tuple[Action, ...]:
        return tuple(actions_of(self._content.answer(index) or "") or ())


class NaVILAPolicy(QuestionRecorder):
    """A `Policy`; see there."""

    @property
    def _size(self) -> int:
        size: int = self._model.config.vision.image_size
        return size

    def agent(self) -> PolicyAgent:
        return PolicyAgent(self._prompts, self, self._size)

    def sample(self, window: Window) -> Sample:
        return Sample(window.ids, window.labels, *window.shown)

    def asks(self, content: SetContent) -> QuestionDataset:
        assert isinstance(content, NaVILASet)
        return QuestionDataset(content, self._prompts, self._size)
