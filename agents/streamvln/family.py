"""StreamVLN as a model family: what training and planning need to know of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from agents.common.checkpoints.placement import place
from agents.common.decoders.windows import Windows
from agents.common.language.family import Chances, LanguageTrains
from agents.common.packing import frames
from agents.common.sets.conversations import Conversation, read_conversations
from agents.common.sets.trajectories import Trajectory, read_trajectories
from agents.common.sight.mirror import mirrored_conversation, mirrored_walk
from agents.common.sight.pictures import beside, check_there
from agents.common.sight.semantics import Semantics, Telling, agreed, make_telling, read_semantics
from agents.common.sight.shown import Shown
from agents.common.towers import siglip
from agents.streamvln import checkpoint, packed, planning
from agents.streamvln import network as networks
from agents.streamvln.checkpoint import PRESETS, create
from agents.streamvln.network import IGNORED, StreamVLN, StreamVLNConfig, parse_config, patch_features, read_config
from agents.streamvln.options import (
    LANGUAGE_MODEL,
    PROJECTOR,
    VISION_TOWER,
    StreamVLNInference,
    StreamVLNPlanning,
    StreamVLNStep,
    StreamVLNTraining,
)
from agents.streamvln.packed import pack
from agents.streamvln.planning import acting, acting_changes
from agents.streamvln.policy import StreamVLNPolicy
from agents.streamvln.prompt import Prompts
from agents.streamvln.samples import (
    ConversationDataset,
    FrameReader,
    MirrorSamples,
    WindowDataset,
    collate,
    window_lengths,
)
from agents.streamvln.score import WindowScorer
from vlnbench.data.sets import CONVERSATIONS, TRAJECTORIES, holds_questions
from vlnbench.errors import UsageError
from vlnbench.training.family.changes import Change
from vlnbench.training.family.checkpoints import Checkpoints, Placement, Source
from vlnbench.training.family.plans import Acting, Plans, Probe
from vlnbench.training.family.policy import Policy, Sampling
from vlnbench.training.family.trains import Features, Known, PartRule, Samples, Scorer, Stretches, Weighting

SEMANTIC, TELLING = "semantic", "telling."
"""Images that say what others show, and the beginning of the names of what learns to tell it."""
CHARACTERS_PER_IMAGE = 90
"""How many characters of text cost as much as an image with its turn, in a small network."""


@dataclass(frozen=True)
class StreamVLNSet:
    """A set of trajectories, which are cut into windows, or of conversations, each of which is a window."""

    file: Path
    windows: int
    trajectories: tuple[Trajectory, ...]
    conversations: tuple[Conversation, ...]
    cut: Windows
    semantics: Semantics | None = None
    at_once: int | None = None

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
            for turn in conversation.turns:
                yield from turn

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


TABLE = (
    PartRule("telling", VISION_TOWER),
    PartRule(".*vision_tower.*post_layernorm", VISION_TOWER, trains="never"),  # the last layer norm is never used
    PartRule(".*vision_tower.*embed", VISION_TOWER, hidden=False),
    PartRule(".*vision_tower", VISION_TOWER),
    PartRule(".*mm_projector", PROJECTOR),
    PartRule("lm_head|.*embed", LANGUAGE_MODEL, hidden=False),
    PartRule("", LANGUAGE_MODEL),
)
"""By the name rules of the original training code."""


class WindowWeights:
    """A `Weighting` of windows that are packed one behind the other."""

    def cost(self, length: tuple[int, ...]) -> float:
        return 1 + length[0] + length[1] / CHARACTERS_PER_IMAGE

    def masses(self, batch: Mapping[str, Any]) -> list[float]:
        weights = batch.get("weights") or [[1.0] * len(row) for row in batch["labels"]]
        rows = zip(batch["labels"], weights, strict=True)
        return [
            sum(weight for label, weight in zip(row[1:], own[1:], strict=True) if label != IGNORED)
            for row, own in rows
        ]

    def weighed(self, batch: dict[str, Any], factors: Sequence[float]) -> dict[str, Any]:
        weights = batch.get("weights") or [[1.0] * len(row) for row in batch["labels"]]
        scaled = [[weight * factor for weight in row] for row, factor in zip(weights, factors, strict=True)]
        return {**batch, "weights": scaled, "total": 1.0}


class StreamVLNCheckpoints(Checkpoints):
    """Folders of StreamVLN."""

    def config(self, source: Source, options: StreamVLNStep) -> StreamVLNConfig:
        return _config(source, options)

    def content_hash(self, path: Path, options: StreamVLNTraining) -> str:
        return checkpoint.content_hash(path, tokenizer=options.tokenizer, vision_tower=options.vision_tower)

    def create(self, preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
        create(PRESETS[preset], folder, texts, seed)

    def placement(self, options: StreamVLNTraining, device: torch.device) -> Placement:
        found = place(str(device), options.dtype, options.attn, torch.bfloat16)
        return Placement(found.dtype, {"attn": found.attn})

    def load(self, path: Path, options: StreamVLNTraining, placement: Placement) -> StreamVLN:
        model = checkpoint.load(
            path,
            vision_tower=options.vision_tower,
            dtype=placement.dtype,
            attn=placement.notes["attn"],
            image_size=options.image_size,
        )
        model.config = replace(  # the agent has to act in the rhythm of the training
            model.config,
            num_frames=options.frames,
            num_history=options.history,
            num_future_steps=options.future_steps,
        )
        return model

    def shapes(self, model: nn.Module) -> StreamVLN:
        network = _streamvln(model)
        with torch.device("meta"):
            whole = StreamVLN(network.config)
            if isinstance(network.telling, Telling):
                whole.telling = Telling(network.telling.channels, network.telling.names)
        return whole

    def save(self, model: nn.Module, folder: Path, base: Path, options: StreamVLNTraining) -> None:
        network = _streamvln(model)
        telling, network.telling = network.telling, None  # works while training and is not kept
        checkpoint.save(network, folder, source=base, tokenizer=options.tokenizer)
        network.telling = telling


class StreamVLNTrains(LanguageTrains, Chances):
    """SigLIP vision tower, projector and Qwen2 language model, trained on windows of trajectories."""

    def parts(self, model: nn.Module, options: StreamVLNStep) -> Sequence[PartRule]:
        return TABLE

    def weighting(self, model: nn.Module) -> Weighting | None:
        packed = _streamvln(model).packed_loss is not None  # else windows of unlike length would be padded
        return WindowWeights() if packed else None

    _semantics: Semantics | None = None
    """What the sets that were read know of what their frames show."""

    def fitted(self, model: nn.Module, options: StreamVLNTraining) -> StreamVLN:
        network = _streamvln(model)
        pack(network, options)
        if options.semantic_weight:
            telling = make_telling(self._semantics, [network.config.vision.hidden_size], options.seed)
            network.telling, network.telling_weight = telling.to(network.dtype), options.semantic_weight
        return network

    def enable_checkpointing(self, model: nn.Module) -> None:
        _streamvln(model).enable_checkpointing()

    def read_set(self, folder: Path, options: StreamVLNTraining) -> StreamVLNSet:
        trajectories: list[Trajectory] = []
        conversations: list[Conversation] = []
        semantics: Semantics | None = None
        if holds_questions(folder):
            if options.learns_from == "answers":
                raise UsageError(
                    f"{folder / CONVERSATIONS}: questions have no actions that answers could be compared with; "
                    "name sets of walks, or use --objective supervised"
                )
            conversations = read_conversations(folder)
            semantics = read_semantics(folder) if options.semantic_weight else None
        else:
            trajectories = read_trajectories(folder)
            if options.learns_from == "answers" and any(each.labels for each in trajectories):
                raise UsageError(
                    f"{folder / TRAJECTORIES}: has labels of single steps (collect --relabel), and answers for "
                    "several steps are compared with what was done; name other sets, or use --objective supervised"
                )
        windows = len(conversations) + sum(
            len(trajectory.instructions) * -(-len(trajectory.actions) // options.frames)
            for trajectory in trajectories
        )
        file = folder / (CONVERSATIONS if conversations else TRAJECTORIES)
        walks, talks = tuple(trajectories), tuple(conversations)
        found = StreamVLNSet(file, windows, walks, talks, options.windows, semantics, options.questions_at_once)
        if semantics is not None:
            self._semantics = agreed(self._semantics, semantics)
            check_there(file, SEMANTIC, [path for each in found.semantic_images() for path in each])
        return found

    def samples(
        self, sets: Sequence[Any], model: nn.Module, base: Path, options: StreamVLNTraining, known: Known | None
    ) -> list[Samples]:
        prompts = Prompts(checkpoint.load_tokenizer(base, options.tokenizer))
        vision = _streamvln(model).config.vision
        reader = FrameReader(vision.image_size, options.augment, known)
        made: list[Samples] = []
        for each in sets:
            shown = Shown(each.semantics, each.semantic_images(), vision.grid) if each.semantics else None
            own = reader
            if options.packed is not None:
                own = reader.keeping(options.packed, each.file, each.images())
                shown = shown and shown.keeping(options.packed, each.file)
            made.append(samples_of(each, prompts, options, own, shown))
        return made

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return collate(samples)

    def stretches(self, model: nn.Module, cached: bool) -> Stretches:
        network = _streamvln(model)
        projector = network.model.mm_projector
        start = projector if cached else network.tower.get_submodule("embeddings")
        return Stretches(("vision", "language"), start, projector)

    def features(self, model: nn.Module, device: torch.device) -> Features:
        network = _streamvln(model)
        return Features(
            tower=network.tower,
            encode=patch_features,
            shape=(network.config.vision.grid**2, network.config.vision.hidden_size),
            dtype=network.dtype,
            fingerprint=fingerprint(network, device),
            entry="images",
        )

    def policy(self, model: nn.Module, base: Path, options: StreamVLNTraining, sampling: Sampling) -> Policy:
        return StreamVLNPolicy(_streamvln(model), base, options, sampling)

    def scorer(self, path: Path, device: torch.device) -> Scorer:
        return WindowScorer(path, device)


class StreamVLNPlans(Plans):
    """Windows of full length."""

    def build(self, config: StreamVLNConfig, options: StreamVLNPlanning) -> StreamVLN:
        # The flash kernels of both kinds allocate alike.
        return StreamVLN(config, "eager" if options.attn == "eager" else "sdpa")

    def probe(self, config: StreamVLNConfig, options: StreamVLNPlanning, device: str) -> Probe:
        return planning.probe(config, options, device)

    def flops(
        self, config: StreamVLNConfig, options: StreamVLNStep, parts: Mapping[str, int], tokens: int
    ) -> float:
        return planning.flops(config, options, parts, tokens)

    def changes(self, options: StreamVLNPlanning) -> Iterator[Change]:
        return planning.changes(options)

    def inference_network(self, config: StreamVLNConfig, options: StreamVLNInference) -> StreamVLN:
        return StreamVLN(config, "sdpa")

    def inference(self, network: StreamVLN, config: StreamVLNConfig, options: StreamVLNInference) -> Acting:
        return acting(network, options)

    def inference_changes(self, options: StreamVLNInference) -> Iterator[Change]:
        return acting_changes(options)


def _config(source: Source, options: StreamVLNStep | StreamVLNInference) -> StreamVLNConfig:
    """A network's sizes as its source has them, for the images that the options name."""
    if source.kind == "sizes":
        config = parse_config(planning.SIZES[source.name], source.name)
    elif source.path is None:
        preset = PRESETS[source.name]
        config = parse_config(preset.config(preset.vocabulary, 0, 1), source.name)
    else:
        config = read_config(source.path, options.vision_tower)
    return config if options.image_size is None else config.with_image_size(options.image_size)


def fingerprint(network: StreamVLN, device: torch.device) -> str:
    """Hash of all that the features of a frame depend on beside it."""
    vision, attention = network.config.vision, network.model.vision_attention
    facts = (vision, attention, network.dtype, transformers.__version__)
    return frames.fingerprint(network.tower, device, facts, (siglip, networks, packed))


def samples_of(
    found: StreamVLNSet,
    prompts: Prompts,
    options: StreamVLNTraining,
    reader: FrameReader,
    shown: Shown | None = None,
) -> Samples:
    """The samples of a set. shown: what its images show, if that is to be told."""
    plain = _samples_of(found, prompts, options, reader, shown)
    if not options.mirror:
        return plain
    return MirrorSamples(plain, _samples_of(found.mirrored(), prompts, options, reader, shown), options.mirror)


def _samples_of(
    found: StreamVLNSet, prompts: Prompts, options: StreamVLNTraining, reader: FrameReader, shown: Shown | None
) -> Samples:
    if found.conversations:
        return ConversationDataset(
            found.conversations, prompts, reader, wording=options.wording, shown=shown, at_once=found.at_once
        )
    return WindowDataset(
        found.trajectories,
        prompts,
        found.cut,
        reader,
        wording=options.wording,
        inflection_weight=options.inflection_weight,
        seed=options.seed,
    )


def _streamvln(model: nn.Module) -> StreamVLN:
    assert isinstance(model, StreamVLN)
    return model
