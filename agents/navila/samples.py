"""Training samples of NaVILA, a question and its answer each, and what it draws when it learns from rewards.

Sets are walks as they are collected here, of which every run of like actions is a question, or folders in its own
layout: a JSON list, or JSON lines, of records of three kinds. They have `video_id`, `frames` (oldest first, the
current one last), `q` and `a`; or a video and its `instruction` (EnvDrop); or a video with `q` and `a` (ScanQA) or
`conversations`. Frames lie below train/ or raw_frames/, videos below videos/.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from agents.common.decoders.policy import QuestionRecorder, Window
from agents.common.packing.frames import Known as KnownFrames
from agents.common.packing.samples import Sample
from agents.common.sets.records import Records
from agents.common.sets.trajectories import Trajectory, read_trajectories
from agents.common.sight.reader import FrameReader
from agents.navila.agent import BLACK, PolicyAgent, Prompts, actions_of, chosen, sentence
from agents.navila.options import SET_FILES
from vlnbench.data.trajectory_sets import set_file
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.training.family import policy as contract
from vlnbench.training.family.trains import SetContent
from vlnbench.util.durable.json_stream import elements

ROOTS = ("train", "raw_frames", "videos")
"""Where published sets have their frames and videos."""
LONGEST_RUN = 3
"""Like actions that one sentence says: the published answers are of up to 75 cm or 45 degrees."""


class Asked(NamedTuple):
    """What one sample is made of.

    kind: the next move by an instruction (`text`), the instruction of a whole walk, or a question about a video
    (`text`). answers: of which one is drawn; none where files are missing, of which nothing is learned. frames:
    names below `folder`, None for black ones, empty for a video.
    """

    kind: Literal["move", "walk", "video"]
    text: str
    answers: tuple[str, ...]
    folder: Path
    frames: tuple[str | None, ...] = ()
    video: str = ""

    @property
    def paths(self) -> tuple[Path | None, ...]:
        """Files of the frames."""
        return tuple(None if name is None else self.folder / name for name in self.frames)


class Place(NamedTuple):
    """A question along a walk: walk and instruction by position, step, and how many like actions follow; none
    where the walk is described."""

    walk: int
    instruction: int
    step: int
    run: int


@dataclass(frozen=True)
class NaVILASet:
    """A set, of samples that others wrote or of walks; a `SetContent`. left_out: see `LeavesOut`."""

    file: Path
    shown: int
    written: tuple[Asked, ...] = ()
    walks: tuple[Trajectory, ...] = ()
    places: tuple[Place, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def windows(self) -> int:
        return len(self.written) + len(self.places)

    @property
    def counts(self) -> Mapping[str, int]:
        """Of each kind how many."""
        told = [each.text or answer for each in self.written if each.kind != "video" for answer in each.answers]
        found = {
            "trajectories": len(self.walks),
            "instructions": sum(len(each.instructions) for each in self.walks) or len({*told}),
            "questions": sum(each.kind == "move" for each in self.written),
            "videos": len({each.video for each in self.written if each.video}),
            "questions whose frames are missing, which teach nothing": sum(not e.answers for e in self.written),
        }
        return {name: count for name, count in found.items() if count}

    def texts(self) -> Iterator[str]:
        for each in self.written:
            yield each.text
            yield from each.answers if each.kind != "move" else ()
        for walk in self.walks:
            yield from walk.instructions

    def lengths(self) -> list[tuple[int, ...]]:
        """(characters of the longest text,) of every sample: nearly all show as many frames."""
        written = (max(map(len, (each.text, *each.answers))) for each in self.written)
        along = (len(self.walks[each.walk].instructions[each.instruction]) for each in self.places)
        return [(length,) for length in chain(written, along)]

    def asked(self, index: int) -> Asked:
        """What a sample is made of."""
        if self.written:
            return self.written[index]
        place = self.places[index]
        walk = self.walks[place.walk]
        text, names, steps = (
            walk.instructions[place.instruction],
            walk.frame_names(),
            chosen(place.step + 1, self.shown),
        )
        frames = tuple(None if step == BLACK else names[step] for step in steps)
        if not place.run:
            return Asked("walk", "", (text,), walk.frames_dir, frames)
        return Asked("move", text, (sentence(walk.taught[place.step], place.run),), walk.frames_dir, frames)

    def expected(self, index: int) -> tuple[Action, ...]:
        """The actions that a sample teaches; none for one that teaches none, or something else."""
        asked = self.asked(index)
        return tuple(actions_of(asked.answers[0]) or ()) if asked.kind == "move" and asked.answers else ()


def read_set(folder: Path, shown: int, described: bool = False) -> NaVILASet:
    """A set's folder; a question shows so many frames. described: its walks are described, as they are walked.

    Raises UsageError for one that is missing, empty or broken.
    """
    if (file := set_file(folder, SET_FILES)) is None:
        raise UsageError(f"{folder / SET_FILES[0]}: not there; expected a set with {' or '.join(SET_FILES)}")
    records = enumerate(elements(file))
    if (first := next(records, None)) is None:
        raise UsageError(f"{file}: expected a list of samples or walks")
    if isinstance(first[1], dict) and "actions" not in first[1]:
        root = next((path for name in ROOTS if (path := folder / name).is_dir()), folder)
        return _read_published(file, root, shown, chain([first], records))
    walks = read_trajectories(folder, shortest=1)
    places = [
        Place(index, instruction, step, run)
        for index, walk in enumerate(walks)
        for instruction in range(len(walk.instructions))
        for step, run in ([(len(walk.actions) - 1, 0)] if described else runs(walk))
    ]
    return NaVILASet(file, shown, walks=tuple(walks), places=tuple(places))


def _read_published(file: Path, root: Path, shown: int, found: Iterator[tuple[int, Any]]) -> NaVILASet:
    """A set that others wrote. Answers that name no action are left out, and what lacks files teaches nothing."""
    records, written = Records(file, root), list[Asked]()
    for number, record in found:
        asked = _asked(records, number, records.fields(number, record, ""), shown)
        if asked.kind == "move" and actions_of(asked.answers[0]) is None:
            records.odd.append((number, asked.answers[0]))
            continue
        files = [asked.video] if asked.video else [name for name in asked.frames if name is not None]
        if missing := next((name for name in files if not records.has(name)), None):
            records.lost.append(missing)
            asked = asked._replace(answers=(), frames=(None,) * shown, video="")
        written.append(asked)
    left_out = records.left_out(sentence(Action.TURN_LEFT, 2), "teach nothing")
    if len(records.lost) == len(written):
        raise UsageError(left_out[-1])
    return NaVILASet(file, shown, tuple(written), left_out=left_out)


def _asked(records: Records, number: int, record: Mapping[str, Any], shown: int) -> Asked:
    """A record of one of the three kinds; without its files being looked for."""
    if "frames" in record:
        names = record["frames"]
        if not isinstance(names, list) or not names:
            raise records.fail(number, "frames", "a list of paths of images")
        steps = chosen(len(names), shown)
        frames = tuple(None if step == BLACK else records.below(number, "frames", names[step]) for step in steps)
        if record.get("video_id") is None:
            raise records.fail(number, "video_id", "the name of the video, as every record with frames has")
        asked, answer = (records.text(number, name, record.get(name)) for name in ("q", "a"))
        return Asked("move", asked, (answer,), records.root, frames)
    named = next((name for name in ("video_path", "video", "video_id") if name in record), None)
    if named is None:
        raise records.fail(
            number, "frames", "a list of paths of images, or a video, video_path or video_id instead"
        )
    suffix = ".mp4" if named == "video_id" else ""
    video = records.below(number, named, records.text(number, named, record[named]) + suffix)
    if "instruction" in record:
        text = records.text(number, "instruction", record["instruction"])
        return Asked("walk", "", (text,), records.root, video=video)
    question, answers = record.get("q"), record.get("a")
    if "conversations" in record:
        question, answers = records.turns(number, record["conversations"])[0]
    answers = answers if isinstance(answers, list) and answers else [answers]
    told = tuple(records.text(number, "a", answer) for answer in answers)
    return Asked("video", _without_tags(records.text(number, "q", question)), told, records.root, video=video)


def _without_tags(question: str) -> str:
    """A question whose placeholders are taken away, as published: every frame gets one in front of it."""
    for tag in ("<image>", "<video>"):
        for written in (f"{tag}\n", f"\n{tag}", tag):
            question = question.replace(written, "")
    return question


def spread(length: int, count: int) -> list[int]:
    """Frames of a video of so many that are shown with a question: evenly, or all where there are fewer."""
    return np.linspace(0, length - 1, count, dtype=int).tolist() if length >= count else list(range(length))


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
        return [index for index in range(len(self)) if self._content.expected(index)]

    def sample(self, index: int, rng: random.Random) -> Sample:
        """`rng` draws one of several answers."""
        asked, prompts = self._content.asked(index), self._prompts
        if asked.video:
            choose = chosen if asked.kind == "walk" else spread
            images = self._reader.video(asked.folder / asked.video, partial(choose, count=self._content.shown))
        else:
            images = self._reader.behind_black(asked.paths, rng)
        answer = rng.choice(asked.answers) if asked.answers else None
        if asked.kind == "move":
            return Sample(*prompts.lesson(asked.text, answer), images)
        if asked.kind == "walk":
            return Sample(*prompts.description(answer), images)
        return Sample(*prompts.reply(asked.text, answer, len(images)), images)

    def question(self, index: int, rng: random.Random) -> contract.Question:
        """Token ids and frames of a question as the agent puts it, and what the expert did. Nothing is drawn."""
        asked = self._content.asked(index)
        ids, images = self._prompts.question(asked.text), self._reader.behind_black(asked.paths, rng)
        return contract.Question((ids, images), self._content.expected(index))


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
