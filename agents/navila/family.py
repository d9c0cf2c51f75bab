"""NaVILA as a model family: its checkpoints, what trains of it and on what, what that takes of a GPU."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers

from agents.common.checkpoints.files import GENERATION
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.new_tokenizer import write_with_begin
from agents.common.decoders.placeholders import IGNORED, IMAGE
from agents.common.decoders.planning import acting
from agents.common.language.family import LanguageCheckpoints, LanguageTrains, LogProbabilities
from agents.common.language.planning import LanguagePlans, operations, part_changes
from agents.common.packing import frames
from agents.common.sets.conversations import TAG
from agents.common.towers import siglip
from agents.navila import network
from agents.navila.agent import MOVES, SYSTEM, Prompts, question_text, sentence
from agents.navila.network import (
    BEGIN,
    END,
    MARKS,
    PUBLISHED,
    NaVILA,
    NaVILAConfig,
    generation,
    inputs_of,
    parse_config,
    read_config,
)
from agents.navila.options import (
    FOLDERS,
    HISTORY,
    LANGUAGE_MODEL,
    PRESETS,
    SIZES,
    VISION_TOWER,
    NaVILAInference,
    NaVILAPlanning,
    NaVILAShown,
    NaVILAStep,
    NaVILATraining,
    parts_table,
)
from agents.navila.samples import LONGEST_RUN, NaVILAPolicy, NaVILASet, QuestionDataset, read_set
from vlnbench.interfaces import Action
from vlnbench.training.family.changes import Change
from vlnbench.training.family.checkpoints import Placement, Source
from vlnbench.training.family.plans import Acting, Probe
from vlnbench.training.family.policy import Policy, Sampling
from vlnbench.training.family.trains import Features, Known, PartRule, Samples, Stretches

PAD = "[PAD]"
Shown = TypeVar("Shown", bound=NaVILAShown)


def _fixed_texts() -> list[str]:
    """What every question says alike, and every sentence there is: one token each, so that sequences are short."""
    asked = [part for piece in question_text("\0", HISTORY + 1).split(TAG) for part in piece.split("\0")]
    said = [sentence(action, steps) for action in MOVES for steps in range(1, LONGEST_RUN + 1)]
    return [SYSTEM, *dict.fromkeys(part for part in asked if len(part) > 1), sentence(Action.STOP), *said]


class NaVILACheckpoints(LanguageCheckpoints):
    """Folders of NaVILA."""

    def config(self, source: Source, options: NaVILAStep | NaVILAInference) -> NaVILAConfig:
        if source.kind == "sizes":
            return parse_config(PUBLISHED, SIZES[source.name], source.name, options.history)
        if source.path is None:
            preset = PRESETS[source.name]
            return parse_config(PUBLISHED, preset.parts(preset.vocabulary, 0), source.name, options.history)
        return read_config(source.path, options.history)

    def settled(self, source: Source, options: Shown) -> Shown:
        own = HISTORY if source.path is None else read_config(source.path).num_history
        inputs = inputs_of(source.path, options)
        return replace(options, history=options.history or own, instructions=inputs.instructions)

    def check_files(self, path: Path, options: NaVILATraining) -> None:
        network.load_tokenizer(path)
        list(network.read_files(path))

    def content_hash(self, path: Path, options: NaVILATraining) -> str:
        return content_hash(network.read_files(path))

    def create(self, preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
        sizes = PRESETS[preset]
        with tempfile.TemporaryDirectory() as made:
            words = Path(made, FOLDERS[0])
            words.mkdir()
            named = {"bos_token": BEGIN, "eos_token": END, "pad_token": PAD}
            ids = write_with_begin(words, texts, sizes.vocabulary, _fixed_texts(), (*MARKS, PAD), **named)
            ends = {"bos_token_id": ids[BEGIN], "eos_token_id": ids[END]}
            (words / GENERATION).write_text(json.dumps(ends, indent=2) + "\n")
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = NaVILA(parse_config(PUBLISHED, sizes.parts(len(ids), ids[END]), "preset"))
            network.save(model, folder, inputs_of(None, None), source=Path(made))

    def load(self, path: Path, options: NaVILATraining, placement: Placement) -> NaVILA:
        return network.load(
            path,
            dtype=placement.dtype,
            device=placement.device,
            attn=placement.notes["attn"],
            history=options.history,
        )

    def save(self, model: NaVILA, folder: Path, base: Path, options: NaVILATraining) -> None:
        network.save(model, folder, inputs_of(base, options), source=base, history=options.history)


class NaVILATrains(LanguageTrains, LogProbabilities):
    """SigLIP vision tower, projector and Llama, trained on sentences that answer questions along walks."""

    def parts(self, model: NaVILA, options: NaVILAStep) -> Sequence[PartRule]:
        return parts_table(model.config.vision.num_hidden_layers - 1)

    def read_set(self, folder: Path, options: NaVILATraining) -> NaVILASet:
        return read_set(folder, (options.history or HISTORY) + 1, folder.name in options.describe)

    def samples(
        self, sets: Sequence[Any], model: NaVILA, base: Path, options: NaVILATraining, known: Known | None
    ) -> list[Samples]:
        size = model.config.vision.image_size
        return [QuestionDataset(each, _prompts(model, base, options), size, known) for each in sets]

    def stretches(self, model: NaVILA, cached: bool) -> Stretches:
        start = model.mm_projector if cached else model.tower.get_submodule("embeddings")
        return Stretches(("vision", "language"), start, model.mm_projector)

    def features(self, model: NaVILA, device: torch.device) -> Features:
        vision = model.config.vision
        facts = (vision, model.vision_attention, model.dtype, transformers.__version__)
        return Features(
            tower=model.tower,
            encode=partial(siglip.patch_features, whole=vision),
            shape=(vision.grid**2, vision.hidden_size),
            dtype=model.dtype,
            fingerprint=frames.fingerprint(model.tower, device, facts, (siglip, network)),
            entry="images",
        )

    def policy(self, model: NaVILA, base: Path, options: NaVILATraining, sampling: Sampling) -> Policy:
        settings = generation(base, network.load_tokenizer(base))
        return NaVILAPolicy(model, settings, _prompts(model, base, options), sampling, Action.MOVE_FORWARD)


class NaVILAPlans(LanguagePlans):
    """Questions, which are all about equally long."""

    def build(self, config: NaVILAConfig, options: NaVILAPlanning) -> NaVILA:
        # The flash kernels of both kinds allocate alike.
        return NaVILA(config, "eager" if options.attn == "eager" else "sdpa")

    def probe(self, config: NaVILAConfig, options: NaVILAPlanning, device: str) -> Probe:
        """Samples of equal length with as many labels as real ones have."""
        answer, size = options.answer_tokens, config.vision.image_size
        ids = [1] * options.text_tokens + [IMAGE] * config.frames + [1] * answer
        images = torch.zeros(config.frames, 3, size, size, device=device)
        batch = {
            "input_ids": [ids] * options.batch,
            "images": [images] * options.batch,
            "labels": [[IGNORED] * (len(ids) - answer) + [1] * answer] * options.batch,
        }
        tokens = options.text_tokens + answer + config.frames * config.image_tokens
        return Probe(batch, tokens=tokens, supervised=answer, width=config.vocab_size)

    def flops(self, config: NaVILAConfig, options: NaVILAStep, parts: Mapping[str, int], tokens: int) -> float:
        patches = config.vision.grid**2 * config.frames
        return operations(options, parts, patches, tokens, (VISION_TOWER,), LANGUAGE_MODEL)

    def changes(self, options: NaVILAPlanning) -> Iterator[Change]:
        yield from _less_history(options, "results")
        yield from part_changes(options, VISION_TOWER, LANGUAGE_MODEL, "vision tower frozen")

    def inference_network(self, config: NaVILAConfig, options: NaVILAInference) -> NaVILA:
        return NaVILA(config)

    def inference(self, network: NaVILA, config: NaVILAConfig, options: NaVILAInference) -> Acting:
        return acting(network, options.max_batch, options.max_new_tokens, keeps=False)

    def inference_changes(self, options: NaVILAInference) -> Iterator[Change]:
        yield from super().inference_changes(options)
        yield from _less_history(options, "answers")


def _less_history(options: NaVILAShown, what: str) -> Iterator[Change]:
    """Ways to show less, after which there are other results or answers, as `what` says."""
    half = (options.history or HISTORY) // 2
    if half:
        price = f"less of the way is shown: other {what}"
        yield Change("history", f"--history {half}", 14, (("history", half),), price)


def _prompts(model: NaVILA, base: Path, options: NaVILATraining) -> Prompts:
    return Prompts(network.load_tokenizer(base), inputs_of(base, options), (options.history or HISTORY) + 1)
