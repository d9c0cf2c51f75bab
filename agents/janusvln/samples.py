"""Training samples of JanusVLN, single steps of walks, and what frozen encoders make of them; its own answers to
learn from when there are rewards, and how likely it finds an expert's."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from agents.common.answers.names import NAMES
from agents.common.checkpoints.placement import place
from agents.common.decoders.placeholders import IGNORED
from agents.common.decoders.policy import SampledActing, Walk, Window
from agents.common.packing.frames import Frame, fingerprint, frame_key, pack
from agents.common.qwen2_5_vl import checkpoint, layers, vision
from agents.common.qwen2_5_vl import image as cutting
from agents.common.qwen2_5_vl.config import BLOCK, MERGE
from agents.common.qwen2_5_vl.image import Grid, grid_of, patches
from agents.common.qwen2_5_vl.language import expand
from agents.common.qwen2_5_vl.policy import QwenRecorder
from agents.common.qwen2_5_vl.vision import VisionTower
from agents.common.sets.steps import StepSet, read_steps
from agents.common.sight.pictures import content_of, decoded
from agents.common.towers import vggt as geometry
from agents.common.towers.vggt import Geometry
from agents.janusvln import network as own
from agents.janusvln.agent import EXPECTS, EpisodeLoop, Prompts, shown_steps
from agents.janusvln.network import (
    Decoder,
    JanusVLN,
    JanusVLNConfig,
    Memory,
    Question,
    inputs_of,
    load,
    resize,
    together,
)
from agents.janusvln.options import JanusVLNShown
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions
from vlnbench.training.family import policy as contract
from vlnbench.training.family.trains import Answer, Features, Known, SetContent

TOWERS, GEOMETRIES = "towers", "geometries"
"""Entries of a batch."""
REMEDY = "extract it again"


@dataclass(frozen=True)
class Reader:
    """How frames are read: scaled to `width`; with `known`, what encoders make of them is looked up first.

    `sees`: whether Qwen's tower is frozen, so that its features are known, too.
    """

    width: int
    known: Known | None = None
    sees: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One step of a walk.

    input_ids: L token ids with one placeholder per image. labels: L ids, `IGNORED` where the loss does not look.
    grid: embeddings of its images. frames: uint8 (k, height, width, 3), the current one last; None where nothing
    has to look at them again. towers, geometries: what encoders look at, where features are kept.
    """

    input_ids: list[int]
    labels: list[int]
    grid: Grid
    frames: Tensor | None
    towers: list[Frame] | None = None
    geometries: list[Frame] | None = None


class StepSamples:
    """The steps of a set's walks, as samples."""

    def __init__(self, content: StepSet, prompts: Prompts, config: JanusVLNConfig, reader: Reader) -> None:
        self.content = content
        self._prompts, self._config, self._reader = prompts, config, reader
        self.places = range(content.windows)

    def __len__(self) -> int:
        return self.content.windows

    def question(self, index: int, rng: random.Random) -> contract.Question:
        """A step as an agent would be asked there, and what the expert did."""
        sample = self.sample(index, rng)
        asked = [id_ for id_, label in zip(sample.input_ids, sample.labels, strict=True) if label == IGNORED]
        walk, _, step = self.content.keys[index]
        return contract.Question((asked, sample.frames), (self.content.walks[walk].actions[step],))

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Build one sample; nothing is drawn."""
        walk_number, text, step = self.content.keys[index]
        walk = self.content.walks[walk_number]
        paths = [walk.folder / walk.frames[shown] for shown in shown_steps(step, self._config.num_history)]
        try:
            ids, labels = self.written(walk.texts[text], len(paths), walk.actions[step].name)
        except ValueError as error:
            raise UsageError(f"{self.content.file}: {walk.name}: {error}") from error
        if self._reader.known is None:
            frames = torch.stack([_decoded(path, content_of(path, REMEDY), self._reader.width) for path in paths])
            return Sample(ids, labels, grid_of(*frames.shape[1:3]), frames)
        return self._keyed(ids, labels, paths, self._reader.known)

    def written(self, instruction: str, images: int, label: str) -> tuple[list[int], list[int]]:
        """Token ids and labels of a question with its answer."""
        asked, told = self._prompts.question(instruction, images), self._prompts.answer(label)
        if not self._prompts.published:
            told = told[:-1]  # answers end before the newline
        return asked + told, [IGNORED] * len(asked) + told

    def _keyed(self, ids: list[int], labels: list[int], paths: Sequence[Path], known: Known) -> Sample:
        """The same with what is known in the place of frames."""
        contents = [content_of(path, REMEDY) for path in paths]
        keys = [frame_key(content) for content in contents]
        geometry = known(geometry_key(keys))
        sees, width = self._reader.sees, self._reader.width
        towers = [known(key) if sees else None for key in keys]
        needed = [i for i, tower in enumerate(towers) if geometry is None or tower is None]
        frames = {i: _decoded(paths[i], contents[i], width) for i in needed}
        whole = torch.stack([frames[i] for i in needed]) if len(needed) == len(keys) else None
        seen = Frame(geometry_key(keys), geometry, whole if geometry is None else None)
        return Sample(
            ids,
            labels,
            _grid(width, frames, [geometry, *towers]),
            None if sees else whole,
            [
                Frame(key, tower, frames[i] if tower is None else None)
                for i, (key, tower) in enumerate(zip(keys, towers, strict=True))
            ]
            if sees
            else None,
            [seen],
        )


def _grid(width: int, frames: dict[int, Tensor], known: Sequence[Tensor | None]) -> Grid:
    """The embeddings of a sample's images, from a frame or from features of one."""
    for frame in frames.values():
        return grid_of(*frame.shape[:2])
    columns = width // BLOCK
    patches = next(len(each) for each in known if each is not None)
    return Grid(patches // MERGE**2 // columns, columns)


def _decoded(path: Path, content: bytes, width: int) -> Tensor:
    """A frame scaled for the network, uint8 (height, width, 3)."""

    def scaled(image: Image.Image) -> NDArray[np.uint8]:
        try:
            return resize(np.asarray(image.convert("RGB")), width)
        except ValueError as error:
            raise UsageError(f"{path}: {error}; {REMEDY}") from error

    return torch.from_numpy(decoded(path, scaled, REMEDY, content))


def collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as the arguments of `JanusVLN.forward`; whoever has features puts those in the place of
    `Frames`."""
    frames = [sample.frames for sample in samples if sample.frames is not None]
    batch: dict[str, Any] = {
        "input_ids": [sample.input_ids for sample in samples],
        "frames": frames or None,
        "labels": [sample.labels for sample in samples],
        "grids": [sample.grid for sample in samples],
    }
    for name in (TOWERS, GEOMETRIES):
        seen = [getattr(sample, name) for sample in samples]
        if seen[0] is not None:
            batch[name] = pack(seen)
    return batch


def geometry_key(frames: Sequence[str]) -> str:
    """Key of the last frame's geometry by the keys of all frames in order."""
    return hashlib.blake2b(" ".join(frames).encode(), digest_size=16, person=b"geometry").hexdigest()


def cached_features(network: JanusVLN, device: torch.device) -> list[Features]:
    """What of a network can be kept: VGGT's features, and where it is frozen those of Qwen's tower.

    What Qwen's tower sees in a frame depends on that frame alone. What VGGT sees in the last frame of a sample
    depends on the frames before it, so it is known by all of them in order: it is found again when the sample is
    seen again.
    """

    def kept(tower: nn.Module, encode: Any, width: int, entry: str, phase: str) -> Features:
        sizes = (network.config.vision, network.vggt.aggregator.sizes, network.config.image_width)
        facts = (type(tower).__name__, *sizes, network.dtype)
        found = fingerprint(tower, device, facts, (own, cutting, vision, geometry, layers), behind="merger.")
        return Features(tower, encode, (-1, width), network.dtype, found, entry, phase)

    width = 2 * network.vggt.aggregator.sizes.width
    geometries = kept(network.vggt, _measure, width, GEOMETRIES, "geometry")
    if any(parameter.requires_grad for parameter in network.visual.blocks.parameters()):
        return [geometries]
    return [kept(network.visual, _see, network.config.vision.width, TOWERS, "vision"), geometries]


def _see(tower: nn.Module, frames: Tensor) -> Tensor:
    """Features of frames (N, height, width, 3)."""
    assert isinstance(tower, VisionTower)
    shown = patches(frames.to(torch.uint8)).to(frames.dtype)
    return tower.features(shown, grid_of(*frames.shape[1:3]))


def _measure(vggt: nn.Module, samples: Tensor) -> Tensor:
    """Features of the last frames of samples (N, k, height, width, 3)."""
    assert isinstance(vggt, Geometry)
    return torch.stack(vggt(list(samples.to(torch.uint8))))


class JanusVLNPolicy(QwenRecorder):
    """A `Policy`; see there.

    What VGGT saw while the network acted is part of what is learned from: it never trains, and it remembers frames
    that a question does not show.
    """

    at_once = 8
    _model: JanusVLN
    _prompts: Prompts

    def agent(self) -> PolicyAgent:
        return PolicyAgent(self._prompts, self, self._model)

    def decoder(self) -> Decoder:
        longest = self._sampling.answer_tokens
        return Decoder(self._model, self._settings, max_new_tokens=longest, choose=self.choose)

    # what the loop needs of a decoder beside `run`

    def begin(self, slot: int) -> None:
        self._decoder.begin(slot)

    def memory(self, slot: int) -> Memory:
        memory: Memory = self._decoder.memory(slot)
        return memory

    def see(self, frames: Mapping[int, NDArray[np.uint8]]) -> None:
        self._decoder.see(frames)

    def drop(self, slot: int) -> None:
        self.begin(slot)

    def asked(self, prompts: Mapping[int, tuple[list[int], Tensor]]) -> list[Question]:
        """Their frames are seen one after the other."""
        for slot in prompts:
            self.begin(slot)
        for step in range(max(len(frames) for _, frames in prompts.values())):
            shown = {slot: frames[step].numpy() for slot, (_, frames) in prompts.items() if step < len(frames)}
            self.see(shown)
        return [Question(slot, ids, list(range(len(frames)))) for slot, (ids, frames) in prompts.items()]

    def take_in(self, walk: Walk, question: Question) -> None:
        memory = self.memory(question.slot)
        assert memory.seen is not None
        frames = torch.from_numpy(np.stack([memory.frames[step] for step in question.steps]))
        # a clone takes part in a backward pass, what was seen cannot
        seen = Frame(f"{walk.name}/{walk.seed}/{walk.answers}", memory.seen.clone(), None)
        walk.see(question.input_ids, (frames, seen))

    def sample(self, window: Window) -> Sample:
        ((frames, seen),) = window.shown
        return Sample(window.ids, window.labels, grid_of(*frames.shape[1:3]), frames, geometries=[seen])

    def asks(self, content: SetContent) -> StepSamples:
        assert isinstance(content, StepSet)
        config = self._model.config
        return StepSamples(content, self._prompts, config, Reader(config.image_width))


class PolicyAgent(SampledActing, EpisodeLoop):
    """JanusVLN in simulators, acting by chance and remembered by its policy."""

    expects: Conventions = EXPECTS

    def __init__(self, prompts: Prompts, policy: JanusVLNPolicy, model: JanusVLN) -> None:
        self._recorder = policy
        super().__init__(prompts, policy, model.config.num_history, sys.maxsize, model.config.image_width)


class StepScorer:
    """Scores the steps of walks as the agent would be asked there. An answer's loss is that of all its tokens."""

    def __init__(self, path: Path, device: torch.device) -> None:
        found = place(str(device), "auto", "sdpa", torch.bfloat16)
        self._model = load(path, dtype=found.dtype, device=device)
        config = self._model.config
        inputs = inputs_of(config, path, JanusVLNShown())  # as the agent is asked
        self._model.config = config.shown(inputs.image_width, inputs.history)
        self._prompts = Prompts(checkpoint.load_tokenizer(path, config), inputs.wording)
        self._answers = {action: self._prompts.answer(label)[:-1] for label, action in NAMES.items()}

    def __call__(self, folder: Path, batch: int) -> Iterator[Answer]:
        """The answers at every step of a set, for each instruction."""
        config = self._model.config
        content = read_steps(folder, config.num_history, every_text=True)
        samples = StepSamples(content, self._prompts, config, Reader(config.image_width))
        for first in range(0, len(samples), batch):
            chosen = range(first, min(first + batch, len(samples)))
            scored = score_steps(self._model, [samples.sample(i, random.Random(i)) for i in chosen], self._answers)
            for index, losses in zip(chosen, scored, strict=True):
                number, _, step = content.keys[index]
                walk = content.walks[number]
                expected = walk.actions[step]
                likeliest = min(losses, key=lambda action: losses[action])
                yield Answer(walk.name, step, expected, walk.before[step], likeliest, losses[expected])


@torch.inference_mode()
def score_steps(
    model: JanusVLN, samples: Sequence[Sample], answers: dict[Action, list[int]]
) -> list[dict[Action, float]]:
    """For every sample the loss in nats of each answer, the end of its block included."""
    frames = [sample.frames for sample in samples]
    assert all(isinstance(each, Tensor) for each in frames)
    shown = [each for each in frames if isinstance(each, Tensor)]
    images = together(model.visual.merger, together(model.tower_features, shown))
    geometries = together(model.merger, [found[None] for found in model.final_geometries(shown)])
    found: list[dict[Action, float]] = []
    for sample, image, around in zip(samples, images, geometries, strict=True):
        asked = [each for each, label in zip(sample.input_ids, sample.labels, strict=True) if label < 0]
        fused = model.fuse(image, around).flatten(0, 1)
        rows = [
            expand([*asked, *answer[:-1]], [sample.grid] * len(image), model.config.image_token)
            for answer in answers.values()
        ]
        hidden = model.hidden(rows, fused.repeat(len(rows), 1))
        losses = {}
        for row, state, (action, answer) in zip(rows, hidden, answers.items(), strict=True):
            scores = model.logits(state[: len(row[0])][-len(answer) :]).float()
            losses[action] = float(
                functional.cross_entropy(scores, torch.tensor(answer, device=model.device), reduction="sum")
            )
        found.append(losses)
    return found
