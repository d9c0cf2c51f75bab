"""JanusVLN as a model family: its checkpoints, what trains of it and on what, what that takes of a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from agents.common.checkpoints import weights
from agents.common.checkpoints.placement import place
from agents.common.checkpoints.versions import check_transformers
from agents.common.language.family import Chances, LanguageTrains
from agents.common.qwen2_5_vl import checkpoint
from agents.common.qwen2_5_vl.config import MERGE
from agents.common.qwen2_5_vl.image import grid_of
from agents.common.qwen2_5_vl.tokens import generation_settings
from agents.common.towers.vggt_sizes import VGGT_1B, GeometrySizes, geometry_sizes
from agents.janusvln import planning
from agents.janusvln.agent import Prompts
from agents.janusvln.features import GEOMETRIES, Mixed, cached_features
from agents.janusvln.network import JanusVLN, JanusVLNConfig, inputs_of, load, parse_config, read_config
from agents.janusvln.options import (
    GEOMETRY_MERGER,
    LLM,
    MLP,
    VGGT,
    VISION,
    JanusVLNInference,
    JanusVLNPlanning,
    JanusVLNShown,
    JanusVLNStep,
    JanusVLNTraining,
)
from agents.janusvln.planning import SIZES, acting, acting_changes
from agents.janusvln.policy import JanusVLNPolicy, StepScorer
from agents.janusvln.presets import PRESETS, create
from agents.janusvln.samples import Reader, StepSamples, WalkSet, collate, read_set
from vlnbench.errors import UsageError
from vlnbench.training.family.changes import Change
from vlnbench.training.family.checkpoints import Checkpoints, Placement, Source
from vlnbench.training.family.plans import Acting, Plans, Probe
from vlnbench.training.family.policy import Policy, Sampling, Scored
from vlnbench.training.family.trains import Features, Known, PartRule, Samples, Scorer, Stretches

HEAD = "lm_head.weight"
BIASES: Literal["all but biases"] = "all but biases"


@dataclass(frozen=True)
class Sizes:
    """A network's sizes: what config.json says, and VGGT's."""

    config: JanusVLNConfig
    geometry: GeometrySizes


Shown = TypeVar("Shown", bound=JanusVLNShown)


class JanusVLNCheckpoints(Checkpoints):
    """Folders of JanusVLN."""

    def config(self, source: Source, options: JanusVLNStep | JanusVLNInference) -> Sizes:
        found = _sizes(source)
        if found.config.tied and isinstance(options, JanusVLNStep) and options.train_head:
            raise UsageError(f"--train-head: the output layer of {source.name} is its embeddings, part of {LLM}")
        return Sizes(found.config.shown(options.image_width, options.history), found.geometry)

    def settled(self, source: Source, options: Shown) -> Shown:
        inputs = inputs_of(_sizes(source).config, source.path, options)
        given = {each.name: getattr(inputs, each.name) for each in fields(inputs) if hasattr(options, each.name)}
        return replace(options, **given)

    def content_hash(self, path: Path, options: JanusVLNTraining) -> str:
        return checkpoint.content_hash(path, tokenizer=options.tokenizer)

    def create(self, preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
        create(PRESETS[preset], folder, texts, seed)

    def placement(self, options: JanusVLNTraining, device: torch.device) -> Placement:
        import transformers

        check_transformers(transformers.__version__)
        attn = "sdpa" if options.attn == "auto" else options.attn
        found = place(str(device), options.dtype, attn, torch.bfloat16)
        return Placement(found.dtype, {"attn": found.attn})

    def load(self, path: Path, options: JanusVLNTraining, placement: Placement) -> JanusVLN:
        model = load(path, dtype=placement.dtype, eager=placement.notes["attn"] == "eager")
        inputs = inputs_of(model.config, path, options)
        model.config = model.config.shown(inputs.image_width, inputs.history)
        return model

    def shapes(self, model: nn.Module) -> JanusVLN:
        network = _janusvln(model)
        with torch.device("meta"):
            return JanusVLN(network.config, network.vggt.aggregator.sizes)

    def save(self, model: nn.Module, folder: Path, base: Path, options: JanusVLNTraining) -> None:
        network = _janusvln(model)
        inputs = inputs_of(network.config, base, options)
        checkpoint.save(network, folder, inputs, source=base, tokenizer=options.tokenizer)


class JanusVLNTrains(LanguageTrains, Chances):
    """Qwen2.5-VL with the geometry that a frozen VGGT sees, trained on single steps of walks."""

    def parts(self, model: nn.Module, options: JanusVLNStep) -> Sequence[PartRule]:
        """RMSNorm's weights decay, too: the published code exempts LayerNorm only."""
        head: Literal["always", "with its part"] = "always" if options.train_head else "with its part"
        return [
            PartRule(r"vggt\.", VGGT, trains="never", decays=BIASES),
            PartRule(r"merger\.", GEOMETRY_MERGER, decays=BIASES),
            PartRule(r"visual\.merger\.", MLP, decays=BIASES),
            PartRule(r"visual\.", VISION, decays=BIASES),
            PartRule("lm_head", LLM, trains=head, decays=BIASES, hidden=False),
            PartRule(".*embed", LLM, decays=BIASES, hidden=False),
            PartRule("", LLM, decays=BIASES),
        ]

    def remark(self, model: nn.Module, options: JanusVLNStep) -> str:
        untied = HEAD in dict(model.named_parameters())
        if LLM in options.parts or not untied:
            return ""
        if options.train_head:
            return f"{HEAD} trains though {LLM} is frozen, as in the published code (--train-head)"
        return f"{HEAD} is frozen with {LLM}; the published code trains it even then (--train-head)"

    def uneven(self, model: nn.Module) -> list[nn.Module]:
        return [_janusvln(model).vggt]  # runs once for every frame that a sample has

    def enable_checkpointing(self, model: nn.Module) -> None:
        _janusvln(model).enable_checkpointing()

    def read_set(self, folder: Path, options: JanusVLNTraining) -> WalkSet:
        return read_set(folder, options)

    def samples(
        self, sets: Sequence[Any], model: nn.Module, base: Path, options: JanusVLNTraining, known: Known | None
    ) -> list[Samples]:
        network = _janusvln(model)
        prompts = _prompts(network, base, options)
        sees = not any(parameter.requires_grad for parameter in network.visual.blocks.parameters())
        reader = Reader(network.config.image_width, known, sees)
        return [StepSamples(each, prompts, network.config, reader) for each in sets]

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return collate(samples)

    def stretches(self, model: nn.Module, cached: bool) -> Stretches:
        visual = _janusvln(model).visual
        seen = cached and not any(parameter.requires_grad for parameter in visual.blocks.parameters())
        start = visual.merger if seen else visual.patch_embed
        return Stretches(("vision", "geometry", "language"), start, _janusvln(model).merger, visual.merger)

    def all_features(self, model: nn.Module, device: torch.device) -> list[Features]:
        return cached_features(_janusvln(model), device)

    def scorer(self, path: Path, device: torch.device) -> Scorer:
        return StepScorer(path, device)

    def policy(self, model: nn.Module, base: Path, options: JanusVLNTraining, sampling: Sampling) -> Policy:
        network = _janusvln(model)
        prompts = _prompts(network, base, options)
        return JanusVLNPolicy(network, generation_settings(base, prompts.tokenizer), prompts, sampling)

    def chances(self, model: Any, batch: Mapping[str, Any], temperature: float) -> Scored:
        seen = batch[GEOMETRIES]
        assert isinstance(seen, Mixed)
        geometries = [seen.known[places] for places in seen.order]
        return super().chances(model, {**batch, GEOMETRIES: geometries}, temperature)

    def cache_bytes(self, config: Sizes, options: JanusVLNPlanning) -> int:
        return super().cache_bytes(config.config, options)


class JanusVLNPlans(Plans):
    """Steps late in a walk, which show all the frames they may."""

    def build(self, config: Sizes, options: JanusVLNPlanning) -> JanusVLN:
        return JanusVLN(config.config, config.geometry, options.attn == "eager")

    def probe(self, config: Sizes, options: JanusVLNPlanning, device: str) -> Probe:
        found = planning.probe(config.config, options, device)
        if options.learns_from == "labels":
            return found
        shown = grid_of(*planning.shown_size(config.config))
        shape = (options.batch, MERGE**2 * shown.cells, 2 * config.geometry.width)
        seen = Mixed([[i] for i in range(options.batch)], torch.zeros(shape, device=device), [], [])
        return replace(found, batch={**found.batch, GEOMETRIES: seen})

    def flops(self, config: Sizes, options: JanusVLNStep, parts: Mapping[str, int], tokens: int) -> float:
        return planning.flops(config.config, options, parts, tokens)

    def changes(self, options: JanusVLNPlanning) -> Iterator[Change]:
        return planning.changes(options)

    def inference_network(self, config: Sizes, options: JanusVLNInference) -> JanusVLN:
        return JanusVLN(config.config, config.geometry)

    def inference(self, network: JanusVLN, config: Sizes, options: JanusVLNInference) -> Acting:
        return acting(network, options)

    def inference_changes(self, options: JanusVLNInference) -> Iterator[Change]:
        return acting_changes(options)


def _sizes(source: Source) -> Sizes:
    """A network's sizes as its source has them. Raises UsageError for weights that do not fit them."""
    if source.kind == "sizes":
        return Sizes(parse_config(SIZES[source.name], source.name), VGGT_1B)
    if source.path is None:
        preset = PRESETS[source.name]
        return Sizes(parse_config(preset.config(), source.name), preset.geometry)
    config = read_config(source.path)
    entries = weights.read_entries(weights.weight_files(source.path))
    geometry = geometry_sizes({name: entry.shape for name, entry in entries.items()}, str(source.path))
    with torch.device("meta"):
        weights.check_entries(entries, JanusVLN(config, geometry), source.path)
    return Sizes(config, geometry)


def _prompts(network: JanusVLN, base: Path, options: JanusVLNTraining) -> Prompts:
    tokenizer = checkpoint.load_tokenizer(base, network.config, options.tokenizer)
    return Prompts(tokenizer, inputs_of(network.config, base, options).wording)


def _janusvln(model: nn.Module) -> JanusVLN:
    assert isinstance(model, JanusVLN)
    return model
