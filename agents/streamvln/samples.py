"""Training samples of StreamVLN, one per trajectory, instruction and window, as the published code builds them."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image

from agents.common.decoders.windows import Windows
from agents.common.packing.frames import Frame, Known, frame_key, pack
from agents.common.sets.conversations import SYMBOLS, TAG, Conversation
from agents.common.sets.trajectories import Trajectory
from agents.common.sight.augment import augment
from agents.common.sight.shown import Shown
from agents.common.towers.siglip import network_input, resize
from agents.streamvln.network import IGNORED, IMAGE, MEMORY
from agents.streamvln.prompt import PHRASES, SYSTEM, Content, Prompts, task_text, view
from vlnbench.errors import UsageError
from vlnbench.training.family.trains import Samples
from vlnbench.training.kept_frames import KeptFrames, keep_frames, kept_name
from vlnbench.util.durable.limits import regular

Wording = Literal["published", "evaluation"]

NAMES = {action: symbol for symbol, action in SYMBOLS.items()}


class WindowKey(NamedTuple):
    """Which sample: trajectory and instruction by position, window by its first step."""

    trajectory: int
    instruction: int
    start: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One window as a conversation.

    input_ids: L token ids with placeholders for images and memory. labels: L ids, `IGNORED` where the
    loss does not look. images: float32 (n, 3, size, size), the `n_memory` memory frames first, then one frame per
    turn; or as many frames with their keys, where features are kept. time_ids: steps of the window. weights: L
    weights of the labels in the loss, None where all count alike. shown: bool (n, names, grid, grid), what the
    cells of the images show; None where that is not known.
    """

    input_ids: list[int]
    labels: list[int]
    images: torch.Tensor | list[Frame]
    n_memory: int
    time_ids: range
    weights: list[float] | None = None
    shown: torch.Tensor | None = None


class FrameReader:
    """Reads the frames of samples: resized, with `augmented` jittered.

    With `known`, frames whose features it returns are not decoded, which excludes `augmented`.
    """

    def __init__(self, image_size: int, augmented: bool = False, known: Known | None = None) -> None:
        if augmented and known is not None:
            raise ValueError("augmented frames have no features that could be known")
        self._image_size = image_size
        self._augmented = augmented
        self._known = known
        self._kept: KeptFrames | None = None

    def read(self, paths: Sequence[Path], rng: random.Random) -> torch.Tensor | list[Frame]:
        """Frames as float32 (n, 3, size, size), or with their keys where features are kept."""
        if self._known is None:
            return network_input([self._frame(path, rng) for path in paths])
        return [self._keyed_frame(path, self._known) for path in paths]

    def keeping(self, folder: Path, file: Path, items: Sequence[Sequence[Path]]) -> FrameReader:
        """A reader of one set's resized frames, which are kept in `folder`; `file` tells the set.

        items: the images of every item of the set. Raises UsageError if a frame cannot be read, or the folder not
        be written.
        """
        if self._augmented or self._known is not None:
            raise ValueError("frames are kept that are always the same and always read")
        size = self._image_size
        name, drawn = kept_name(file, (each[0] for each in items), size, PIL.__version__), random.Random(0)

        def decoded(item: int) -> NDArray[np.uint8]:
            return np.stack([self._frame(path, drawn) for path in items[item]])

        reader = FrameReader(size)
        reader._kept = keep_frames(folder, name, map(len, items), 3 * size**2, decoded)
        return reader

    def shown(
        self, item: int, which: Sequence[int], files: Callable[[], Sequence[Path]], rng: random.Random
    ) -> torch.Tensor | list[Frame]:
        """As `read`, of some images of an item of the set, by position; files: where these are."""
        if self._kept is None:
            return self.read(files(), rng)
        frames = self._kept.frames(item, which)
        return network_input(frames.reshape(len(frames), self._image_size, self._image_size, 3))

    def _frame(self, path: Path, rng: random.Random) -> NDArray[np.uint8]:
        image = _decoded(path, path)
        return resize(augment(image, rng) if self._augmented else image, self._image_size)

    def _keyed_frame(self, path: Path, known: Known) -> Frame:
        try:
            content = regular(path).read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror}); extract it again") from error
        key = frame_key(content)
        if (features := known(key)) is not None:
            return Frame(key, features, None)
        frame = resize(_decoded(io.BytesIO(content), path), self._image_size)
        return Frame(key, None, network_input([frame])[0])


class WindowDataset:
    """The windows of all trajectories under all their instructions; a map-style dataset for torch.

    Items are addressed by (epoch, index) and draw their phrases and, where `frames` jitters, their jitter from a
    generator that depends on these and `seed` only: not on workers, order or batch size. `wording` is how a window
    is written: as the published training does, or as the evaluation, with an empty assistant block before every
    answer, which a model that is trained from scratch has to have seen.

    `inflection_weight` is the weight in the loss of an action that differs from the one before it. Strays have no
    label. Where a trajectory says what is to be done at every frame, that is the label, and what was done is read.

    Raises UsageError for an inflection weight, strays or such labels with a tokenizer that does not write every
    action as one token.
    """

    def __init__(
        self,
        trajectories: Sequence[Trajectory],
        prompts: Prompts,
        windows: Windows,
        frames: FrameReader,
        *,
        wording: Wording = "published",
        inflection_weight: float = 1.0,
        seed: int = 0,
    ) -> None:
        self._trajectories = trajectories
        self._prompts = prompts
        self._windows = windows
        self._frames = frames
        self._seed = seed
        self._marks = prompts.block_marks()
        self._inflection_weight = inflection_weight
        by_action = inflection_weight != 1 or any(each.strays or each.labels for each in trajectories)
        self._ids = {action: id_ for id_, action in prompts.action_ids().items()} if by_action else {}
        self._write = self._as_evaluated if wording == "evaluation" else self._as_published
        self.keys = window_keys(trajectories, windows)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, position: tuple[int, int]) -> Sample:
        epoch, index = position
        return self.sample(index, random.Random(f"{self._seed}/{epoch}/{index}"))

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Build one sample; phrases come first from `rng`, in turn order, then the frames' jitter."""
        trajectory, instruction, start = self.keys[index]
        memory, turns = self.steps(index)
        walked = self._trajectories[trajectory]
        actions, text = walked.actions, walked.instructions[instruction]
        answers = ["".join(NAMES[actions[step]] for step in turn) for turn in turns]
        input_ids, labels = self._write(text, bool(memory), answers, rng)
        seen = [*memory, *(turn.start for turn in turns)]
        images = self._frames.shown(trajectory, seen, lambda: walked.frames_at(seen), rng)
        steps = range(start, turns[-1].stop)
        weights = self._weigh(labels, walked, steps) if self._ids else None
        return Sample(input_ids, labels, images, len(memory), steps, weights)

    def _weigh(self, labels: list[int], walked: Trajectory, steps: range) -> list[float] | None:
        """Label every action with what is to be done, strays not at all, and weigh them if they are to be weighed.

        Inflection weighting (arXiv 1904.03461): walking on is common, turning and stopping is not.
        """
        symbols = frozenset(self._ids.values())
        places = [place for place, id_ in enumerate(labels) if id_ in symbols]
        taught = walked.taught
        weights = [1.0] * len(labels)
        for place, step in zip(places, steps, strict=True):
            labels[place] = IGNORED if step in walked.strays else self._ids[taught[step]]
            if step not in walked.strays and (step == 0 or taught[step] != taught[step - 1]):
                weights[place] = self._inflection_weight
        return weights if self._inflection_weight != 1 else None

    def walk(self, index: int) -> tuple[Trajectory, str]:
        """The walk that a window is of, and the instruction."""
        trajectory, instruction, _ = self.keys[index]
        walked = self._trajectories[trajectory]
        return walked, walked.instructions[instruction]

    def steps(self, index: int) -> tuple[range, list[range]]:
        """Steps of the memory frames, and for each turn the steps it answers for; its frame is the first's."""
        trajectory, _, start = self.keys[index]
        return _steps(self._trajectories[trajectory], start, self._windows)

    def _as_published(
        self, instruction: str, memory: bool, answers: Sequence[str], rng: random.Random
    ) -> tuple[list[int], list[int]]:
        """Token ids and labels of the published training, whose memory sentence has a colon."""
        ids: list[int] = []
        labels: list[int] = []

        def add(role: str, *content: str | int) -> None:
            block = self._prompts.block(role, *content)
            ids.extend(block)
            answered = role == "assistant"
            labels.extend(id_ if answered or id_ in self._marks else IGNORED for id_ in block)

        add("system", SYSTEM)
        sentence: Content = (" These are your historical observations: ", MEMORY, ".") if memory else ()
        opening: Content = (task_text(instruction), *sentence, " ")
        for number, answer in enumerate(answers):
            add("user", *(opening if number == 0 else ()), *view(rng.choice(PHRASES)))
            add("assistant", answer)
        return ids, labels

    def _as_evaluated(
        self, instruction: str, memory: bool, answers: Sequence[str], rng: random.Random
    ) -> tuple[list[int], list[int]]:
        """Token ids as the agent feeds and expects them, and labels on the answers alone."""
        ids: list[int] = []
        labels: list[int] = []
        for number, answer in enumerate(answers):
            phrase = rng.choice(PHRASES)
            prompts = self._prompts
            asked = (
                prompts.following((), phrase) if number else prompts.opening(instruction, phrase, memory=memory)
            )
            told = prompts.block("assistant", answer)[:-1]  # generation ends before the newline
            ids += asked + told
            labels += [IGNORED] * len(asked) + told
        return ids, labels


class MirrorSamples:
    """Samples of a set, some of them in a mirror, by chance."""

    def __init__(self, plain: Samples, mirrored: Samples, chance: float) -> None:
        """mirrored: the same with left and right exchanged in all but the frames."""
        self._plain, self._mirrored, self._chance = plain, mirrored, chance

    def __len__(self) -> int:
        return len(self._plain)

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Build one sample; first is drawn whether it is one in the mirror."""
        if rng.random() >= self._chance:
            return cast(Sample, self._plain.sample(index, rng))
        sample: Sample = self._mirrored.sample(index, rng)
        assert isinstance(sample.images, torch.Tensor)
        shown = None if sample.shown is None else sample.shown.flip(-1)
        return replace(sample, images=sample.images.flip(-1), shown=shown)


def window_keys(trajectories: Sequence[Trajectory], windows: Windows) -> list[WindowKey]:
    """The windows of all trajectories under all their instructions, in order."""
    return [
        WindowKey(index, instruction, start)
        for index, trajectory in enumerate(trajectories)
        for instruction in range(len(trajectory.instructions))
        for start in range(0, len(trajectory.actions), windows.num_frames)
    ]


def window_lengths(trajectories: Sequence[Trajectory], windows: Windows) -> list[tuple[int, int]]:
    """(frames, characters of the instruction) of every window, in the order of `window_keys`."""
    lengths = []
    for index, instruction, start in window_keys(trajectories, windows):
        memory, turns = _steps(trajectories[index], start, windows)
        lengths.append((len(memory) + len(turns), len(trajectories[index].instructions[instruction])))
    return lengths


def _steps(trajectory: Trajectory, start: int, windows: Windows) -> tuple[range, list[range]]:
    end = min(start + windows.num_frames, len(trajectory.actions))
    length = windows.num_future_steps
    turns = [range(first, min(first + length, end)) for first in range(start, end, length)]
    return windows.memory_steps(start), turns


def _decoded(file: Path | io.BytesIO, path: Path) -> Image.Image:
    """An image file's picture; `path` names it in messages."""
    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError) as error:  # the latter is Pillow's for broken PNG files
        raise UsageError(f"{path}: cannot be read as an image ({error}); extract it again") from error


def collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as the arguments of `StreamVLN.forward`, which pads them itself.

    Frames with keys are packed; whoever has the features puts those in their place.
    """
    keyed = [sample.images for sample in samples if isinstance(sample.images, list)]
    arguments: dict[str, Any] = {
        "input_ids": [sample.input_ids for sample in samples],
        "images": pack(keyed) if keyed else [sample.images for sample in samples],
        "labels": [sample.labels for sample in samples],
    }
    if any(sample.weights for sample in samples):
        arguments["weights"] = [sample.weights or [1.0] * len(sample.labels) for sample in samples]
    firsts = accumulate((len(sample.images) for sample in samples), initial=0)
    known = [(each.shown, first) for each, first in zip(samples, firsts, strict=False) if each.shown is not None]
    if known:
        which = [torch.arange(len(shown)) + first for shown, first in known]
        arguments["shown"] = (torch.cat([shown for shown, _ in known]), torch.cat(which))
    return arguments


class ConversationDataset:
    """Conversations as training samples, beside the windows of a `WindowDataset`, whose wordings they share.

    With the wording of the evaluation an answer follows an empty assistant block, and labels are on answers alone.
    """

    def __init__(
        self,
        conversations: Sequence[Conversation],
        prompts: Prompts,
        frames: FrameReader,
        *,
        wording: Wording = "published",
        shown: Shown | None = None,
        at_once: int | None = None,
    ) -> None:
        """shown: what the conversations' images show, if that is to be told; at_once: of the questions of a
        conversation a sample has so many, drawn; None: all in order."""
        self._conversations, self._shown, self._at_once = conversations, shown, at_once
        self._prompts = prompts
        self._frames = frames
        self._write = self._as_evaluated if wording == "evaluation" else self._as_published
        self._marks = prompts.block_marks()

    def __len__(self) -> int:
        return len(self._conversations)

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Build one sample; `rng` draws questions, if that is asked for, and then the images' jitter."""
        conversation = self._conversations[index]
        if self._at_once is not None:
            conversation = conversation.drawn(self._at_once, rng)
        input_ids, labels = self._write([(_content(asked), told) for asked, told in conversation.turns])
        files = conversation.images
        images = self._frames.shown(index, range(len(files)), lambda: files, rng)
        shown = None if self._shown is None else self._shown.of(index)
        return Sample(input_ids, labels, images, 0, range(0), shown=shown)

    def _as_published(self, turns: Sequence[tuple[Content, str]]) -> tuple[list[int], list[int]]:
        blocks = [("system", self._prompts.block("system", SYSTEM))]
        for asked, told in turns:
            blocks.append(("user", self._prompts.block("user", *asked)))
            blocks.append(("assistant", self._prompts.block("assistant", told)))
        ids = [id_ for _, block in blocks for id_ in block]
        labels = [
            id_ if role == "assistant" or id_ in self._marks else IGNORED
            for role, block in blocks
            for id_ in block
        ]
        return ids, labels

    def _as_evaluated(self, turns: Sequence[tuple[Content, str]]) -> tuple[list[int], list[int]]:
        ids: list[int] = []
        labels: list[int] = []
        before = self._prompts.block("system", SYSTEM)
        for asked, told in turns:
            question = before + self._prompts.block("user", *asked) + self._prompts.block("assistant")
            answer = self._prompts.block("assistant", told)
            before = answer[-1:]  # generation ends before the newline
            ids += question + answer[:-1]
            labels += [IGNORED] * len(question) + answer[:-1]
        return ids, labels


def _content(text: str) -> Content:
    """A turn's text with placeholders for its images."""
    first, *others = text.split(TAG)
    parts: list[str | int] = [first]
    for part in others:
        parts += [IMAGE, part]
    return tuple(part for part in parts if part != "")
