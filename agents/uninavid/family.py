"""Uni-NaVid as a model family: its checkpoints, what trains of it and on what, what that takes of a GPU."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers

from agents.common.checkpoints.files import GENERATION, generation_settings
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.new_tokenizer import write_with_begin
from agents.common.checkpoints.sentencepiece import BEGIN, END, UNKNOWN
from agents.common.decoders.placeholders import IGNORED, IMAGE, MEMORY
from agents.common.decoders.planning import acting
from agents.common.inputs import filled
from agents.common.language.family import LanguageCheckpoints, LanguageTrains, LogProbabilities
from agents.common.language.planning import LanguagePlans, operations, part_changes
from agents.common.packing import frames
from agents.common.prompts.vicuna import SYSTEM
from agents.common.sets.conversations import TAG
from agents.common.towers import eva
from agents.uninavid import network
from agents.uninavid.agent import WORDS, Prompts, question_text
from agents.uninavid.network import MARKS, UniNaVid, UniNaVidConfig, inputs_of, parse_config, read_config
from agents.uninavid.options import (
    CURRENT,
    LANGUAGE_MODEL,
    PARTS_TABLE,
    PRESETS,
    SIZES,
    VISION_TOWER,
    UniNaVidInference,
    UniNaVidPlanning,
    UniNaVidShown,
    UniNaVidStep,
    UniNaVidTraining,
)
from agents.uninavid.samples import ConversationDataset, UniNaVidPolicy, UniNaVidSet, read_set
from vlnbench.training.family.changes import Change
from vlnbench.training.family.checkpoints import Placement, Source
from vlnbench.training.family.plans import Acting, Probe
from vlnbench.training.family.policy import Policy, Sampling
from vlnbench.training.family.trains import Features, Known, PartRule, Samples, Stretches

Shown = TypeVar("Shown", bound=UniNaVidShown)


class UniNaVidCheckpoints(LanguageCheckpoints):
    """Folders of Uni-NaVid, and the file of its vision tower."""

    def config(self, source: Source, options: UniNaVidShown) -> UniNaVidConfig:
        if source.kind == "sizes":
            return parse_config(SIZES[source.name], source.name)
        if source.path is None:
            preset = PRESETS[source.name]
            return parse_config(preset.config(preset.vocabulary, 0, 0), source.name)
        return read_config(source.path)

    def settled(self, source: Source, options: Shown) -> Shown:
        return filled(options, asdict(inputs_of(source.path, options)))

    def check_files(self, path: Path, options: UniNaVidTraining) -> None:
        network.load_tokenizer(path)
        list(network.read_files(path, options.vision_tower, options.trust_pickle))

    def content_hash(self, path: Path, options: UniNaVidTraining) -> str:
        return content_hash(network.read_files(path, options.vision_tower, options.trust_pickle))

    def create(self, preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
        sizes = PRESETS[preset]
        with tempfile.TemporaryDirectory() as made:
            # What every question says alike, and every word of an answer: one token each, for short sequences.
            asked = [part for piece in question_text("\0").split(TAG) for part in piece.split("\0")]
            ids = write_with_begin(
                Path(made),
                texts,
                sizes.vocabulary,
                [SYSTEM, *asked, *(f" {word}" for word in WORDS)],
                (UNKNOWN, BEGIN, END, *MARKS),
                bos_token=BEGIN,
                eos_token=END,
                pad_token=UNKNOWN,
                unk_token=UNKNOWN,
            )
            ends = {"bos_token_id": ids[BEGIN], "eos_token_id": ids[END]}
            Path(made, GENERATION).write_text(json.dumps(ends, indent=2) + "\n")
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = UniNaVid(parse_config(sizes.config(len(ids), ids[BEGIN], ids[END]), "preset"))
            network.save(model, folder, inputs_of(None, None), source=Path(made))

    def load(self, path: Path, options: UniNaVidTraining, placement: Placement) -> UniNaVid:
        return network.load(
            path,
            vision_tower=options.vision_tower,
            dtype=placement.dtype,
            device=placement.device,
            attn=placement.notes["attn"],
            trust_pickle=options.trust_pickle,
            inputs=inputs_of(path, options),
        )

    def save(self, model: UniNaVid, folder: Path, base: Path, options: UniNaVidTraining) -> None:
        network.save(model, folder, inputs_of(base, options), source=base)


class UniNaVidTrains(LanguageTrains, LogProbabilities):
    """EVA's vision tower, projector and Llama, trained on conversations about what is shown."""

    def parts(self, model: UniNaVid, options: UniNaVidStep) -> Sequence[PartRule]:
        return PARTS_TABLE

    def read_set(self, folder: Path, options: UniNaVidTraining) -> UniNaVidSet:
        return read_set(folder, options.every)

    def samples(
        self, sets: Sequence[Any], model: UniNaVid, base: Path, options: UniNaVidTraining, known: Known | None
    ) -> list[Samples]:
        prompts, size = Prompts(network.load_tokenizer(base)), model.config.vision.image_size
        return [ConversationDataset(each, prompts, size, options, known) for each in sets]

    def stretches(self, model: UniNaVid, cached: bool) -> Stretches:
        projector = model.model.mm_projector
        return Stretches(("vision", "language"), projector if cached else model.eyes, projector)

    def features(self, model: UniNaVid, device: torch.device) -> Features:
        side, vision = model.config.side, model.config.vision
        return Features(
            tower=model.eyes,
            encode=partial(network.pooled_features, side=side),
            shape=(side**2 + CURRENT**2, vision.hidden_size),
            dtype=model.dtype,
            fingerprint=frames.fingerprint(
                model.eyes, device, (vision, side, model.dtype, transformers.__version__), (eva, network)
            ),
            entry="images",
        )

    def policy(self, model: UniNaVid, base: Path, options: UniNaVidTraining, sampling: Sampling) -> Policy:
        prompts = Prompts(network.load_tokenizer(base))
        return UniNaVidPolicy(model, generation_settings(base), prompts, options, sampling)


class UniNaVidPlans(LanguagePlans):
    """Videos of equal length."""

    def build(self, config: UniNaVidConfig, options: UniNaVidPlanning) -> UniNaVid:
        # The flash kernels of both kinds allocate alike.
        model = UniNaVid(config, "eager" if options.attn == "eager" else "sdpa")
        model.inputs = inputs_of(None, options)
        return model

    def probe(self, config: UniNaVidConfig, options: UniNaVidPlanning, device: str) -> Probe:
        """Samples of equal length with as many labels as real ones have; no two older frames share a token."""
        count, answer, size = options.frames, options.answer_tokens, config.vision.image_size
        ids = [1] * (options.text_tokens - 1) + [MEMORY, 1, IMAGE] + [1] * answer
        batch = {
            "input_ids": [ids] * options.batch,
            "images": [torch.zeros(count, 3, size, size, device=device)] * options.batch,
            "labels": [[IGNORED] * (len(ids) - answer) + [1] * answer] * options.batch,
        }
        recent = min(count, inputs_of(None, options).window_frames)
        remembered = recent * config.side**2 + (count - recent) + count - 1
        tokens = options.text_tokens + answer + remembered + CURRENT**2
        return Probe(batch, tokens=tokens, supervised=answer, width=config.vocab_size)

    def flops(self, config: UniNaVidConfig, options: UniNaVidStep, parts: Mapping[str, int], tokens: int) -> float:
        count = options.frames if isinstance(options, UniNaVidPlanning) else inputs_of(None, options).window_frames
        patches = (config.vision.grid**2 + 1) * count
        return operations(options, parts, patches, tokens, (VISION_TOWER,), LANGUAGE_MODEL)

    def changes(self, options: UniNaVidPlanning) -> Iterator[Change]:
        return part_changes(options, VISION_TOWER, LANGUAGE_MODEL, "vision tower frozen, as published")

    def inference_network(self, config: UniNaVidConfig, options: UniNaVidInference) -> UniNaVid:
        return UniNaVid(config)

    def inference(self, network: UniNaVid, config: UniNaVidConfig, options: UniNaVidInference) -> Acting:
        return acting(network, options.max_batch, options.max_new_tokens, keeps=False)
