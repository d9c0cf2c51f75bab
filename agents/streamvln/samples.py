"""Training samples of StreamVLN, one per trajectory, instruction and window, as the published code builds them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from agents.common.checkpoints.files import generation_settings
from agents.common.decoders.placeholders import IGNORED
from agents.common.decoders.policy import TurnRecorder, Walk, Window
from agents.common.decoders.turns import Decoder, Turn
from agents.common.decoders.windows import Windows
from agents.common.inputs import Wording
from agents.common.packing import frames
from agents.common.packing import loss as packing
from agents.common.packing.frames import Frame
from agents.common.packing.samples import collate as conversations
from agents.common.sets.conversations import Conversation
from agents.common.sets.trajectories import Trajectory
from agents.common.sight.mirror import MirrorSamples, mirrored_conversation, mirrored_walk
from agents.common.sight.pictures import beside
from agents.common.sight.reader import FrameReader
from agents.common.sight.semantics import Semantics
from agents.common.sight.shown import Shown
from agents.common.towers import siglip
from agents.streamvln import network
from agents.streamvln.agent import PHRASES, PolicyAgent, Prompts, labeled
from agents.streamvln.network import StreamVLN, load_tokenizer
from agents.streamvln.options import StreamVLNTraining
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.training.family.policy import Question, Sampling
from vlnbench.training.family.trains import Samples, SetContent

SEMANTIC = "semantic"
"""Images that say what others show."""


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


@dataclass(frozen=True)
class StreamVLNSet:
    """A set of trajectories, which are cut into windows, or of conversations, each of which is a window."""

    file: Path
    trajectories: tuple[Trajectory, ...]
    conversations: tuple[Conversation, ...]
    cut: Windows
    semantics: Semantics | None = None
    at_once: int | None = None

    @property
    def windows(self) -> int:
        return len(window_keys(self.trajectories, self.cut)) + len(self.conversations)

    @property
    def counts(self) -> Mapping[str, int]:
        """Of each kind how many."""
        return {
            "trajectories": len(self.trajectories),
            "instructions": sum(len(trajectory.instructions) for trajectory in self.trajectories),
            "conversations": len(self.conversations),
        }

    def texts(self) -> Iterator[str]:
        """Instructions, questions and answers."""
        for trajectory in self.trajectories:
            yield from trajectory.instructions
        for conversation in self.conversations:
            yield from chain(*conversation.turns)

    def mirrored(self) -> StreamVLNSet:
        """The set with left and right exchanged in all but its image files."""
        return replace(
            self,
            trajectories=tuple(map(mirrored_walk, self.trajectories)),
            conversations=tuple(map(mirrored_conversation, self.conversations)),
        )

    def images(self) -> list[Sequence[Path]]:
        """Image files of every trajectory or conversation."""
        return [*(each.frames() for each in self.trajectories), *(each.images for each in self.conversations)]

    def semantic_images(self) -> list[list[Path]]:
        """Semantic images of every conversation."""
        folder = self.file.parent
        return [[beside(folder, image, SEMANTIC) for image in each.images] for each in self.conversations]

    def lengths(self) -> list[tuple[int, ...]]:
        """(images, characters of text) of every window."""
        windows = window_lengths(self.trajectories, self.cut)
        return [*windows, *(conversation.length_of(self.at_once) for conversation in self.conversations)]


class WindowDataset:
    """The windows of all trajectories under all their instructions; see `Samples`.

    `wording` is how a window is written: as the published training does, or as the evaluation, with an empty
    assistant block before every answer, which a model that is trained from scratch has to have seen.

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
    ) -> None:
        self._trajectories, self._prompts, self._windows, self._frames = trajectories, prompts, windows, frames
        self._wording, self._inflection_weight = wording, inflection_weight
        by_action = inflection_weight != 1 or any(each.strays or each.labels for each in trajectories)
        self._ids = {action: id_ for id_, action in prompts.action_ids().items()} if by_action else {}
        self.keys = window_keys(trajectories, windows)

    def __len__(self) -> int:
        return len(self.keys)

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Build one sample; phrases come first from `rng`, in turn order, then the frames' jitter."""
        trajectory, _, start = self.keys[index]
        memory, turns = self.steps(index)
        walked, text = self.walk(index)
        answers = [[walked.actions[step] for step in turn] for turn in turns]
        phrases, own = [rng.choice(PHRASES) for _ in answers], self._prompts
        if self._wording == "evaluation":
            input_ids, labels = labeled(own.turns(text, answers, phrases, memory=bool(memory)))
        else:
            input_ids, labels = own.lesson(text, answers, phrases, memory=bool(memory))
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


def collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """As `packing.samples.collate`, with weights and what images show."""
    arguments = conversations(samples)
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
        self._prompts, self._frames, self._wording = prompts, frames, wording

    def __len__(self) -> int:
        return len(self._conversations)

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Build one sample; `rng` draws questions, if that is asked for, and then the images' jitter."""
        conversation = self._conversations[index]
        if self._at_once is not None:
            conversation = conversation.drawn(self._at_once, rng)
        input_ids, labels = self._prompts.talk(conversation.turns, self._wording)
        files = conversation.images
        images = self._frames.shown(index, range(len(files)), lambda: files, rng)
        shown = None if self._shown is None else self._shown.of(index)
        return Sample(input_ids, labels, images, 0, range(0), shown=shown)


def samples_of(
    found: StreamVLNSet,
    prompts: Prompts,
    options: StreamVLNTraining,
    reader: FrameReader,
    shown: Shown | None = None,
) -> Samples:
    """The samples of a set. shown: what its images show, if that is to be told."""

    def made(each: StreamVLNSet) -> Samples:
        wording = options.wording
        assert wording is not None  # settled
        if each.conversations:
            talks = each.conversations
            return ConversationDataset(talks, prompts, reader, wording=wording, shown=shown, at_once=each.at_once)
        weight = options.inflection_weight
        return WindowDataset(
            each.trajectories, prompts, each.cut, reader, wording=wording, inflection_weight=weight
        )

    return MirrorSamples(made(found), made(found.mirrored()), options.mirror) if options.mirror else made(found)


class StreamVLNPolicy(TurnRecorder):
    """A `Policy`; see there. A window holds several answers.

    The header of the answer's block, which the agent writes itself, is put in front of it here: what is drawn, and
    learned from, are actions and the end of the answer. Raises UsageError for a tokenizer in which actions are not
    one token each.
    """

    def __init__(self, model: StreamVLN, base: Path, options: StreamVLNTraining, sampling: Sampling) -> None:
        super().__init__(sampling)
        self._model, self._options = model, options
        self._prompts = Prompts(load_tokenizer(base, options.tokenizer))
        self._symbols = self._prompts.action_ids()
        self._settings = generation_settings(base)
        self._header = self._prompts.header()
        self.max_new_tokens = sampling.answer_tokens

    def decoder(self) -> Decoder:
        """Small networks keep copies of the weights for acting, which are made anew here."""
        return Decoder(self._model, self._settings, max_new_tokens=self.max_new_tokens, choose=self.choose)

    def agent(self) -> PolicyAgent:
        return PolicyAgent(self._prompts, self, self._options.windows, self._model.config.vision.image_size)

    def run(self, questions: Sequence[Turn]) -> list[list[int]]:
        return super().run([replace(turn, input_ids=[*turn.input_ids, *self._header]) for turn in questions])

    def take_in(self, walk: Walk, question: Turn) -> None:
        """A turn that goes on in a window begins with the last answer, which was recorded when it was drawn."""
        known = 0 if question.opens_window else len(walk.last)
        walk.see(question.input_ids[known:], question.images, opens=question.opens_window)

    def read(self, answer: Sequence[int]) -> tuple[Sequence[Action], bool]:
        """Of the expected form are 1 to `num_future_steps` actions and an end, and nothing else."""
        *actions, end = answer
        known = all(each in self._symbols for each in actions)
        fits = 1 <= len(actions) <= self._options.windows.num_future_steps
        return self._prompts.actions(answer), known and fits and end in self._settings.eos

    def sample(self, window: Window) -> Sample:
        return Sample(window.ids, window.labels, torch.cat(window.shown), 0, range(0))

    def asks(self, content: SetContent) -> AskedWindows:
        return AskedWindows(content, self._prompts, self._options, self._model.config.vision.image_size)


class AskedWindows:
    """Windows of walks up to one of their turns, with the expert's answers before it; see `Asks`.

    Turns of which a step is no example are not asked. Raises UsageError for sets that are no walks.
    """

    def __init__(self, content: SetContent, prompts: Prompts, options: StreamVLNTraining, image_size: int) -> None:
        walks = getattr(content, "trajectories", ())
        if not walks:
            none = "has no walks, and so no actions that answers could be compared with"
            raise UsageError(f"{content.file}: {none}")
        self._prompts, self._reader = prompts, FrameReader(image_size)
        self._dataset = WindowDataset(walks, prompts, options.windows, self._reader, wording="evaluation")
        self.places = [index for index in range(len(self._dataset)) if self._turns(index)]

    def question(self, place: int, rng: random.Random) -> Question:
        last = rng.choice(self._turns(place))
        memory, turns = self._dataset.steps(place)
        walk, instruction = self._dataset.walk(place)
        answers = [[walk.actions[step] for step in turn] for turn in turns[: last + 1]]
        phrases = [rng.choice(PHRASES) for _ in answers]
        *before, (asked, _) = self._prompts.turns(instruction, answers, phrases, memory=bool(memory))
        seen = walk.frames_at((*memory, *(turn.start for turn in turns[: last + 1])))
        images = self._reader.read(seen, rng)
        return Question((labeled(before)[0] + asked, images), tuple(answers[last]))

    def _turns(self, index: int) -> list[int]:
        """Turns of a window that can be asked."""
        walk, _ = self._dataset.walk(index)
        turns = self._dataset.steps(index)[1]
        return [place for place, turn in enumerate(turns) if not walk.strays.intersection(turn)]


def fingerprint(own: StreamVLN, device: torch.device) -> str:
    """Hash of all that the features of a frame depend on beside it."""
    vision, attention = own.config.vision, own.model.vision_attention
    facts = (vision, attention, own.dtype, transformers.__version__)
    return frames.fingerprint(own.tower, device, facts, (siglip, network, packing))
