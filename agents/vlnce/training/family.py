"""CMA and Seq2Seq as a model family: what training and planning need to know of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import PIL
import torch
from torch import Tensor, nn

from agents.common.checkpoints.placement import place
from agents.common.sets.trajectories import read_trajectories
from agents.common.sight.semantics import AuxiliaryLoss, Semantics, agreed, make_auxiliary_loss
from agents.common.sight.shown import Shown
from agents.vlnce import encoders, presets, released, resnet
from agents.vlnce import folder as folders
from agents.vlnce.config import FEATURES, Config
from agents.vlnce.options import PTH
from agents.vlnce.resnet import GRID
from agents.vlnce.training.albums import AlbumSamples, AlbumSet, read_albums
from agents.vlnce.training.frames import check_depth, pack, pack_features
from agents.vlnce.training.learner import Eyes, Learner, feature_shapes
from agents.vlnce.training.options import (
    ACTION_HEAD,
    CROSS_MODAL,
    DEPTH_ENCODER,
    INSTRUCTION_ENCODER,
    RGB_ENCODER,
    STATE_ENCODER,
    VLNCEPlanning,
    VLNCEStep,
    VLNCETraining,
)
from agents.vlnce.training.policy import ASKED, VLNCEPolicy
from agents.vlnce.training.samples import WalkSamples, WalkSet, collate
from vlnbench.data.sets import CONVERSATIONS, TRAJECTORIES, holds_questions
from vlnbench.errors import UsageError
from vlnbench.training.family.checkpoints import Checkpoints, Placement, Source
from vlnbench.training.family.plans import Plans, Probe
from vlnbench.training.family.policy import Policy, Sampling, Scored, scored
from vlnbench.training.family.trains import Features, Known, PartRule, Samples, Stretches, Trains

AUXILIARY = "auxiliary."
"""Prefix of what learns to tell what frames show and is not kept."""
TABLE = (
    PartRule(r"net\.instruction_encoder\..*embedding", INSTRUCTION_ENCODER, hidden=False),
    PartRule(r"net\.instruction_encoder\.", INSTRUCTION_ENCODER),
    PartRule(r"net\.rgb_encoder\.cnn\.", RGB_ENCODER),
    PartRule(r"net\.depth_encoder\.visual_encoder\.", DEPTH_ENCODER),
    PartRule(AUXILIARY, RGB_ENCODER),
    PartRule(r"net\.(second_)?state_encoder\.", STATE_ENCODER),
    PartRule(r"net\.prev_action_embedding\.", STATE_ENCODER, hidden=False),
    PartRule(r"action_distribution\.", ACTION_HEAD, hidden=False),
    PartRule(".*embedding", CROSS_MODAL, hidden=False),
    PartRule("", CROSS_MODAL),
)
"""Whatever has no line of its own joins text and images."""


class VLNCECheckpoints(Checkpoints):
    """Files (.pth) and folders of CMA and Seq2Seq."""

    def config(self, source: Source, options: VLNCEStep) -> Config:
        if source.path is None:
            config = presets.SIZES[source.name] if source.kind == "sizes" else presets.PRESETS[source.name]
        elif source.path.suffix == PTH:
            config = released.read(source.path)
        else:
            config = folders.read_folder_config(source.path)
        if config.network.reads == FEATURES:
            raise UsageError(
                f"{source.name}: reads BERT features of RxR, which walks do not hold; R2R's train here"
            )
        return _trained(config, options)

    def content_hash(self, path: Path, options: VLNCETraining) -> str:
        return released.load(path).sha256 if path.suffix == PTH else folders.folder_hash(path)

    def create(self, preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
        presets.create(preset, folder, texts, seed)

    def placement(self, options: VLNCETraining, device: torch.device) -> Placement:
        return Placement(place(str(device), "float32", "eager", torch.float32).dtype, {})

    def load(self, path: Path, options: VLNCETraining, placement: Placement) -> Learner:
        if path.suffix == PTH:
            loaded = released.load(path)
            policy, config = loaded.policy, loaded.config
        else:
            policy, config, _ = folders.load_folder(path)
        config = _trained(config, options)
        with torch.device("meta"):
            learner = Learner(config)
        learner.load_state_dict(policy.state_dict(), assign=True)
        return learner

    def shapes(self, model: nn.Module) -> Learner:
        learner = _learner(model)
        with torch.device("meta"):
            whole = Learner(learner.whole)
            if learner.auxiliary is not None:
                whole.auxiliary = AuxiliaryLoss(learner.auxiliary.channels, learner.auxiliary.names)
        for name, buffer in learner.named_buffers():  # statistics of batch norm, which a checkpoint has to hold
            parent, _, leaf = name.rpartition(".")
            whole.get_submodule(parent).register_buffer(leaf, buffer.detach().cpu().clone())
        return whole

    def save(self, model: nn.Module, folder: Path, base: Path, options: VLNCETraining) -> None:
        learner = _learner(model)
        folders.save_folder(learner, learner.whole, folder, without=AUXILIARY)


class VLNCETrains(Trains):
    """Recurrent policies over RGB, depth and text, trained on whole walks."""

    _semantics: Semantics | None = None
    """What the sets that were read know of what their frames show."""

    def parts(self, model: nn.Module, options: VLNCEStep) -> Sequence[PartRule]:
        learns = _learner(model).whole.network.progress_monitor and options.learns_from == "labels"  # else no loss
        own = PartRule(r"net\.progress_monitor\.", ACTION_HEAD, trains="with its part" if learns else "never")
        return [own, *TABLE]

    _keeps_features = False
    """Whether the samples that were made last have features in place of frames."""

    def fitted(self, model: nn.Module, options: VLNCETraining) -> Learner:
        learner = _learner(model)
        if options.semantic_weight:
            learner.auxiliary, learner.auxiliary_weight = (
                self._auxiliary(learner, options),
                options.semantic_weight,
            )
        return learner

    def _auxiliary(self, learner: Learner, options: VLNCETraining) -> AuxiliaryLoss:
        """What learns to tell what frames show."""
        rgb, depth = learner.feature_shapes()
        if not rgb[1:] == depth[1:] == (GRID, GRID):
            raise UsageError(f"--semantic-weight: the encoders have no {GRID} x {GRID} cells; leave it out")
        return make_auxiliary_loss(self._semantics, (rgb[0], depth[0]), options.seed)

    def read_set(self, folder: Path, options: VLNCETraining) -> WalkSet | AlbumSet:
        if holds_questions(folder):
            if options.learns_from != "labels":
                raise UsageError(
                    f"{folder / CONVERSATIONS}: questions; for --objective {options.objective} name sets of walks"
                )
            albums = read_albums(folder)
            self._semantics = agreed(self._semantics, albums.semantics)
            return albums
        found = WalkSet(folder / TRAJECTORIES, tuple(read_trajectories(folder)))
        check_depth(found.file, found.walks)
        return found

    def samples(
        self, sets: Sequence[Any], model: nn.Module, base: Path, options: VLNCETraining, known: Known | None
    ) -> list[Samples]:
        learner = _learner(model)
        config = learner.whole
        if options.packed is not None:
            sets = [self._kept(each, learner, options) for each in sets]
        return [
            AlbumSamples(each, config, known, options.mirror, _shown(each, options))
            if isinstance(each, AlbumSet)
            else WalkSamples(each, config, options.inflection_weight, known, options.mirror)
            for each in sets
        ]

    def _kept(self, content: WalkSet | AlbumSet, learner: Learner, options: VLNCETraining) -> WalkSet | AlbumSet:
        """The same with its frames kept decoded, or where no encoder is trained what these make of them."""
        assert options.packed is not None
        views = learner.whole.views
        self._keeps_features = not {RGB_ENCODER, DEPTH_ENCODER}.intersection(options.parts) and not options.mirror
        if self._keeps_features:
            eyes = Eyes(learner, learner.whole)
            made_by = _print(eyes, learner.device)
            content = replace(
                content, packed=pack_features(options.packed, content, views, made_by, eyes.features)
            )
        else:
            content = replace(content, packed=pack(options.packed, content, views))
        return content

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return collate(samples)

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        loss: Tensor = model(**batch)
        return loss

    def stretches(self, model: nn.Module, cached: bool) -> Stretches:
        net = _learner(model).net
        if cached or self._keeps_features:
            return Stretches(("seeing", "deciding"), net.instruction_encoder, net.instruction_encoder)
        return Stretches(("seeing", "deciding"), net.rgb_encoder.cnn, net.depth_encoder.visual_encoder)

    def features(self, model: nn.Module, device: torch.device) -> Features:
        learner = _learner(model)
        eyes = Eyes(learner, learner.whole)
        size = sum(prod(shape) for shape in feature_shapes(learner.whole))
        return Features(
            eyes, lambda tower, pixels: tower(pixels), (size,), torch.float32, _print(eyes, device), "frames"
        )

    def policy(self, model: nn.Module, base: Path, options: VLNCETraining, sampling: Sampling) -> Policy:
        return VLNCEPolicy(_learner(model), sampling)

    def log_probabilities(self, model: Any, batch: Mapping[str, Any], temperature: float) -> Scored:
        logits: Tensor = model(**{name: batch[name] for name in ASKED}, at_labels=True)
        labels = batch["labels"][batch["weights"] > 0]
        return scored(logits, labels.to(logits.device), temperature)

    def cache_bytes(self, config: Config, options: VLNCEPlanning) -> int:
        return 0  # a state of fixed size goes from step to step


class VLNCEPlans(Plans):
    """Walks of a length that the options say."""

    def build(self, config: Config, options: VLNCEPlanning) -> Learner:
        return Learner(config)

    def probe(self, config: Config, options: VLNCEPlanning, device: str) -> Probe:
        shape = (options.batch, options.length)
        frame, depth = config.views.inputs
        count = options.batch * options.length
        batch = {
            "frames": (
                torch.zeros(count, *frame, 3, dtype=torch.uint8, device=device),
                torch.zeros(count, *depth, device=device),
            ),
            "words": torch.ones(options.batch, options.words, dtype=torch.long),
            "walk_of": torch.arange(options.batch),
            "previous": torch.zeros(shape, dtype=torch.long),
            "labels": torch.zeros(shape, dtype=torch.long),
            "weights": torch.ones(shape),
            "progress": torch.zeros(shape),
            "rows": torch.arange(count).view(shape),
        }
        return Probe(batch, tokens=options.length, supervised=options.length, width=config.network.num_actions)


def _trained(config: Config, options: VLNCEStep) -> Config:
    """The config as the options want it trained: what is tuned is what --tunable-parts says."""
    network = replace(
        config.network,
        tune_embeddings=INSTRUCTION_ENCODER in options.parts,
        tune_rgb=RGB_ENCODER in options.parts,
        tune_depth=DEPTH_ENCODER in options.parts,
    )
    weight = getattr(options, "progress_weight", None)
    if weight is not None:
        network = replace(network, progress_monitor=weight > 0, progress_weight=float(weight))
    return replace(config, network=network)


def _shown(content: AlbumSet, options: VLNCETraining) -> Shown | None:
    """What the views of a set show, if it is to be told."""
    shown = content.shown if options.semantic_weight else None
    return shown if shown is None or options.packed is None else shown.keeping(options.packed, content.file)


def _print(eyes: Eyes, device: torch.device) -> str:
    """Hash of all that features depend on beside the frame: weights, code, sizes, libraries, arithmetic."""
    on_cuda = device.type == "cuda"
    machine = torch.cuda.get_device_name(device) if on_cuda else torch.backends.cpu.get_cpu_capability()
    convolutions = (eyes.rgb.cnn, eyes.depth.visual_encoder)
    shapes = [eyes.config.views, eyes.config.network.normalize_rgb, *map(repr, convolutions)]
    facts = [*shapes, device.type, machine, torch.get_num_threads(), torch.__version__, PIL.__version__]
    digest = hashlib.sha256(repr(facts).encode())
    for module in (resnet, encoders):
        digest.update(Path(str(module.__file__)).read_bytes())
    for part in convolutions:
        for name, tensor in part.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _learner(model: nn.Module) -> Learner:
    assert isinstance(model, Learner)
    return model
