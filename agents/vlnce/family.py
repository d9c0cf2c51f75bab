"""CMA and Seq2Seq as a model family: checkpoints, parts, samples, what they draw, probe inputs of the planner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.placement import place
from agents.common.decoders.policy import Recorder, SampledActing, Walk, Window
from agents.common.decoders.sampling import Draws
from agents.common.packing.frames import fingerprint
from agents.common.sets.recurrent import Sample, WalkSamples, WalkSet, collate, one_walk
from agents.common.sets.trajectories import read_trajectories
from agents.common.sets.views import ViewSamples, ViewSet, read_views
from agents.common.sight import rgbd
from agents.common.sight.rgbd import check_depth, keep
from agents.common.sight.semantics import AuxiliaryLoss, Semantics, agreed, make_auxiliary_loss
from agents.common.sight.shown import Shown
from agents.common.towers import grids, resnet
from agents.common.towers.resnet import GRID
from agents.vlnce import checkpoint
from agents.vlnce.agent import EpisodeLoop, Sight
from agents.vlnce.network import Eyes, Learner
from agents.vlnce.options import (
    ACTION_HEAD,
    CROSS_MODAL,
    DEPTH_ENCODER,
    FEATURES,
    INSTRUCTION_ENCODER,
    PRESETS,
    RGB_ENCODER,
    SIZES,
    STATE_ENCODER,
    Config,
    VLNCEOptions,
    VLNCEPlanning,
    VLNCEStep,
    VLNCETraining,
)
from vlnbench.data.sets import CONVERSATIONS, TRAJECTORIES, holds_questions
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions, Episode, Sensor
from vlnbench.training.family.checkpoints import Checkpoints, Placement, Source
from vlnbench.training.family.plans import Plans, Probe
from vlnbench.training.family.policy import Policy, Sampling, Scored, scored
from vlnbench.training.family.trains import Features, Known, PartRule, Samples, SetContent, Stretches, Trains

ASKED = ("frames", "words", "walk_of", "previous", "weights", "rows")
"""Of a collated batch, what the scores of drawn actions depend on."""
AT_ONCE = 16
"""Episodes that act, and prompts that are answered, side by side at most."""


@dataclass(frozen=True)
class _Step:
    """A step to be decided by its scores (actions,). shown: words and frames, or a prompt."""

    slot: int
    shown: Any
    logits: Tensor


class VLNCEPolicy(Recorder):
    """A `Policy`; see there. An answer is one action, and there is none that is not in the expected form.

    The whole walk is one window, for its state goes from step to step.
    """

    at_once = AT_ONCE

    def __init__(self, learner: Learner, sampling: Sampling) -> None:
        super().__init__(sampling)
        self.learner = learner

    def decoder(self) -> Learner:
        """The weights are used where they are."""
        return self.learner.eval()

    def agent(self) -> PolicyAgent:
        return PolicyAgent(self)

    def run(self, questions: Sequence[_Step]) -> list[list[int]]:
        return self.drawn(self._draw, questions)

    def _draw(self, steps: Sequence[_Step]) -> list[list[int]]:
        logits = torch.stack([step.logits for step in steps])[:, None]
        return self._sampler.draw([Draws(step.slot, 0, 1) for step in steps], logits)

    @torch.no_grad()
    def asked(self, prompts: Mapping[int, Sample]) -> list[_Step]:
        batch = collate(list(prompts.values()))
        logits = self.learner(**{name: batch[name] for name in ASKED}, at_labels=True).cpu()
        return [_Step(*prompt, row) for prompt, row in zip(prompts.items(), logits, strict=True)]

    def take_in(self, walk: Walk, question: _Step) -> None:
        walk.see((), question.shown, opens=not walk.answers)

    def read(self, answer: Sequence[int]) -> tuple[Sequence[Action], bool]:
        return (Action(answer[0]),), True

    def sample(self, window: Window) -> Sample:
        first, actions = window.shown[0], window.labels
        if isinstance(first, Sample):
            labels = first.labels.clone()
            labels[0, -1] = actions[0]
            return replace(first, labels=labels)
        words, rgb, depth = zip(*window.shown, strict=True)
        frames = torch.stack(rgb), torch.stack(depth)
        return one_walk([words[0]], frames, [0, *actions[:-1]], actions, torch.ones(len(actions)))

    def asks(self, content: SetContent) -> WalkSamples:
        assert isinstance(content, WalkSet)
        return WalkSamples(content, self.learner.whole.views, self.learner.words)


class PolicyAgent(SampledActing, EpisodeLoop):
    """CMA or Seq2Seq in simulators, acting by chance and remembered by its policy."""

    sensors: frozenset[Sensor] = frozenset({"rgb", "depth"})

    def __init__(self, policy: VLNCEPolicy) -> None:
        self._recorder, self._heard = policy, dict[int, Tensor]()
        config = policy.learner.whole
        self.expects: Conventions = config.expects
        super().__init__(
            policy.learner, config, Sight(VLNCEOptions(), config.views), AT_ONCE, policy.learner.words
        )

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self._heard[slot] = torch.from_numpy(self._words.of(episode))
        super().reset(slot, episode, seed)

    def _choose(self, slots: Sequence[int], shown: Sequence[tuple[Tensor, Tensor]], logits: Tensor) -> list[int]:
        asked = zip(slots, shown, logits, strict=True)
        steps = [_Step(slot, (self._heard[slot], *frames), row) for slot, frames, row in asked]
        return [action for (action,) in self._recorder.run(steps)]


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
            config = SIZES[source.name] if source.kind == "sizes" else PRESETS[source.name]
        else:
            config = checkpoint.read(source.path)
        if config.network.reads == FEATURES:
            raise UsageError(
                f"{source.name}: reads BERT features of RxR, which walks do not hold; R2R's train here"
            )
        return _trained(config, options)

    def check_files(self, path: Path, options: VLNCETraining) -> None:
        checkpoint.files_of(path)

    def content_hash(self, path: Path, options: VLNCETraining) -> str:
        return content_hash(checkpoint.files_of(path))

    def create(self, preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
        checkpoint.create(preset, folder, texts, seed)

    def placement(self, options: VLNCETraining, device: torch.device) -> Placement:
        return Placement(place(str(device), "float32", "eager", torch.float32).dtype, {})

    def load(self, path: Path, options: VLNCETraining, placement: Placement) -> Learner:
        loaded = checkpoint.load(path)
        with torch.device("meta"):
            learner = Learner(_trained(loaded.config, options))
        learner.load_state_dict(loaded.policy.state_dict(), assign=True)
        return learner

    def shapes(self, model: Learner) -> Learner:
        with torch.device("meta"):
            whole = Learner(model.whole)
            if model.auxiliary is not None:
                whole.auxiliary = AuxiliaryLoss(model.auxiliary.channels, model.auxiliary.names)
        for name, buffer in model.named_buffers():  # statistics of batch norm, which a checkpoint has to hold
            parent, _, leaf = name.rpartition(".")
            whole.get_submodule(parent).register_buffer(leaf, buffer.detach().cpu().clone())
        return whole

    def save(self, model: Learner, folder: Path, base: Path, options: VLNCETraining) -> None:
        checkpoint.save_folder(model, model.whole, folder, without=AUXILIARY)


class VLNCETrains(Trains):
    """Recurrent policies over RGB, depth and text, trained on whole walks."""

    _semantics: Semantics | None = None
    """What the sets that were read know of what their frames show."""

    def parts(self, model: Learner, options: VLNCEStep) -> Sequence[PartRule]:
        learns = model.whole.network.progress_monitor and options.learns_from == "labels"  # else no loss
        own = PartRule(r"net\.progress_monitor\.", ACTION_HEAD, trains="with its part" if learns else "never")
        return [own, *TABLE]

    _keeps_features = False
    """Whether the samples that were made last have features in place of frames."""

    def fitted(self, model: Learner, options: VLNCETraining) -> Learner:
        if options.semantic_weight:
            model.auxiliary, model.auxiliary_weight = (
                self._auxiliary(model, options),
                options.semantic_weight,
            )
        return model

    def _auxiliary(self, learner: Learner, options: VLNCETraining) -> AuxiliaryLoss:
        """What learns to tell what frames show."""
        rgb, depth = learner.feature_shapes()
        if not rgb[1:] == depth[1:] == (GRID, GRID):
            raise UsageError(f"--semantic-weight: the encoders have no {GRID} x {GRID} cells; leave it out")
        return make_auxiliary_loss(self._semantics, (rgb[0], depth[0]), options.seed)

    def read_set(self, folder: Path, options: VLNCETraining) -> WalkSet | ViewSet:
        if holds_questions(folder):
            if options.learns_from != "labels":
                raise UsageError(
                    f"{folder / CONVERSATIONS}: questions; for --objective {options.objective} name sets of walks"
                )
            views = read_views(folder)
            self._semantics = agreed(self._semantics, views.semantics)
            return views
        found = WalkSet(folder / TRAJECTORIES, tuple(read_trajectories(folder)))
        check_depth(found.file, found.walks)
        return found

    def samples(
        self, sets: Sequence[Any], model: Learner, base: Path, options: VLNCETraining, known: Known | None
    ) -> list[Samples]:
        if options.packed is not None:
            sets = [self._kept(each, model, options) for each in sets]
        given = model.whole.views, model.words, known, options.mirror
        monitored = model.config.progress_monitor
        return [
            ViewSamples(each, *given, _shown(each, options))
            if isinstance(each, ViewSet)
            else WalkSamples(each, *given, options.inflection_weight, monitored)
            for each in sets
        ]

    def _kept(self, content: WalkSet | ViewSet, learner: Learner, options: VLNCETraining) -> WalkSet | ViewSet:
        """The same with its frames kept decoded, or where no encoder is trained what these make of them."""
        assert options.packed is not None
        self._keeps_features = not {RGB_ENCODER, DEPTH_ENCODER}.intersection(options.parts) and not options.mirror
        eyes, views = Eyes(learner), learner.whole.views
        how = (eyes.features, _fingerprint(eyes, learner.device)) if self._keeps_features else ()
        return replace(content, kept=keep(options.packed, content, views, *how))

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return collate(samples)

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        loss: Tensor = model(**batch)
        return loss

    def stretches(self, model: Learner, cached: bool) -> Stretches:
        net = model.net
        if cached or self._keeps_features:
            return Stretches(("seeing", "deciding"), net.instruction_encoder, net.instruction_encoder)
        return Stretches(("seeing", "deciding"), net.rgb_encoder.cnn, net.depth_encoder.visual_encoder)

    def features(self, model: Learner, device: torch.device) -> Features:
        eyes = Eyes(model)
        size = sum(prod(shape) for shape in model.feature_shapes())
        return Features(
            eyes, lambda tower, pixels: tower(pixels), (size,), torch.float32, _fingerprint(eyes, device), "frames"
        )

    def policy(self, model: Learner, base: Path, options: VLNCETraining, sampling: Sampling) -> Policy:
        return VLNCEPolicy(model, sampling)

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
        (frame, depth), steps = config.views.inputs, options.length
        frames = (
            torch.zeros(steps, *frame, 3, dtype=torch.uint8, device=device),
            torch.zeros(steps, *depth, device=device),
        )
        words, actions = torch.ones(options.words, dtype=torch.long), [0] * steps
        batch = collate([one_walk([words], frames, actions, actions, torch.ones(steps))] * options.batch)
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


def _shown(content: ViewSet, options: VLNCETraining) -> Shown | None:
    """What the views of a set show, if it is to be told."""
    shown = content.shown if options.semantic_weight else None
    return shown if shown is None or options.packed is None else shown.keeping(options.packed, content.file)


def _fingerprint(eyes: Eyes, device: torch.device) -> str:
    """Of the two encoders of images; see `fingerprint`."""
    facts = eyes.config.views, eyes.config.network.normalize_rgb, eyes.rgb.cnn, eyes.depth.visual_encoder
    towers = nn.ModuleList([eyes.rgb.cnn, eyes.depth.visual_encoder])
    return fingerprint(towers, device, facts, (resnet, grids, rgbd))
