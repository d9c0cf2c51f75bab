"""Qwen2.5-VL as a model family: what training and planning need to know of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from agents.common.checkpoints.placement import place
from agents.common.language.family import Chances, LanguageFamily
from agents.common.qwen2_5_vl.config import QwenConfig
from agents.common.qwen2_5_vl.tokens import generation_settings
from agents.common.sets.trajectories import read_trajectories
from agents.qwen_vl import checkpoint
from agents.qwen_vl.config import parse_config, read_config
from agents.qwen_vl.network import QwenVL, part_of
from agents.qwen_vl.presets import PRESETS, create
from agents.qwen_vl.prompt import Prompts, Wording
from agents.qwen_vl.training import planning
from agents.qwen_vl.training.acting import acting, acting_changes
from agents.qwen_vl.training.options import QwenVLInference, QwenVLPlanning, QwenVLStep, QwenVLTraining
from agents.qwen_vl.training.policy import QwenVLPolicy
from agents.qwen_vl.training.samples import QuestionDataset, QwenVLSet, collate
from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.training.family import Acting, Known, Placement, Probe, Samples, Source, Stretches
from vlnbench.training.memory.changes import Change
from vlnbench.training.policy import Policy, Sampling


class QwenVLFamily(LanguageFamily, Chances):
    """Vision tower, merger and language model, trained on answers to questions along walks."""

    def config(self, source: Source, options: QwenVLStep | QwenVLInference) -> QwenConfig:
        if source.kind == "sizes":
            return parse_config(planning.SIZES[source.name], source.name)
        if source.path is None:
            return parse_config(PRESETS[source.name], source.name)
        return read_config(source.path)

    def content_hash(self, path: Path, options: QwenVLTraining) -> str:
        return checkpoint.content_hash(path, tokenizer=options.tokenizer)

    def create(self, preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
        create(PRESETS[preset], folder, seed)

    def placement(self, options: QwenVLTraining, device: torch.device) -> Placement:
        attn = "sdpa" if options.attn == "auto" else options.attn
        found = place(str(device), options.dtype, attn, torch.bfloat16)
        return Placement(found.dtype, {"attn": found.attn})

    def load(self, path: Path, options: QwenVLTraining, placement: Placement) -> QwenVL:
        return checkpoint.load(path, dtype=placement.dtype, eager=placement.notes["attn"] == "eager")

    def shapes(self, model: nn.Module) -> QwenVL:
        with torch.device("meta"):
            return QwenVL(_qwen_vl(model).config)

    def save(self, model: nn.Module, folder: Path, base: Path, options: QwenVLTraining) -> None:
        checkpoint.save(_qwen_vl(model), folder, source=base, tokenizer=options.tokenizer)

    def part_of(self, name: str) -> str:
        return part_of(name)

    def enable_checkpointing(self, model: nn.Module) -> None:
        _qwen_vl(model).enable_checkpointing()

    def read_set(self, folder: Path, options: QwenVLTraining) -> QwenVLSet:
        walks = read_trajectories(folder)
        file = folder / TRAJECTORIES
        if any(walk.labels for walk in walks):
            raise UsageError(
                f"{file}: has labels of single steps (collect --relabel); an answer has several actions and is "
                "what was done: collect without --relabel"
            )
        return QwenVLSet(file, tuple(walks), options.actions_per_answer)

    def samples(
        self, sets: Sequence[Any], model: nn.Module, base: Path, options: QwenVLTraining, known: Known | None
    ) -> list[Samples]:
        prompts = Prompts(_tokenizer(model, base, options), wording(options))
        return [QuestionDataset(each, prompts, options.history, options.max_pixels) for each in sets]

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return collate(samples)

    def stretches(self, model: nn.Module, cached: bool) -> Stretches:
        visual = _qwen_vl(model).visual
        return Stretches(("vision", "language"), visual.patch_embed, visual.merger)

    def policy(self, model: nn.Module, base: Path, options: QwenVLTraining, sampling: Sampling) -> Policy:
        network = _qwen_vl(model)
        tokenizer = _tokenizer(model, base, options)
        settings = generation_settings(base, tokenizer)
        prompts = Prompts(tokenizer, wording(options))
        return QwenVLPolicy(network, settings, prompts, options, sampling)

    def build(self, config: QwenConfig, options: QwenVLPlanning) -> QwenVL:
        return QwenVL(config, eager=options.attn == "eager")

    def probe(self, config: QwenConfig, options: QwenVLPlanning, device: str) -> Probe:
        return planning.probe(config, options, device)

    def flops(self, config: QwenConfig, options: QwenVLStep, parts: Mapping[str, int], tokens: int) -> float:
        return planning.flops(config, options, parts, tokens)

    def changes(self, options: QwenVLPlanning) -> Iterator[Change]:
        return planning.changes(options)

    def inference_config(self, source: Source, options: QwenVLInference) -> QwenConfig:
        return self.config(source, options)

    def inference_network(self, config: QwenConfig, options: QwenVLInference) -> QwenVL:
        return QwenVL(config)

    def inference(self, network: QwenVL, config: QwenConfig, options: QwenVLInference) -> Acting:
        return acting(network, options)

    def inference_changes(self, options: QwenVLInference) -> Iterator[Change]:
        return acting_changes(options)


def wording(options: QwenVLTraining) -> Wording:
    """How questions are put in training."""
    return Wording(options.prompt, options.actions_per_answer, options.answers, options.turn_deg)


def _tokenizer(model: nn.Module, base: Path, options: QwenVLTraining) -> Any:
    return checkpoint.load_tokenizer(base, _qwen_vl(model).config, options.tokenizer)


def _qwen_vl(model: nn.Module) -> QwenVL:
    assert isinstance(model, QwenVL)
    return model
