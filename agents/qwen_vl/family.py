"""Qwen2.5-VL as a model family: its checkpoints, what trains of it and on what, what that takes of a GPU."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from agents.common.answers.names import NAMES
from agents.common.checkpoints.files import GENERATION
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.placement import place
from agents.common.decoders.placeholders import IGNORED
from agents.common.inputs import filled
from agents.common.language.family import LanguageTrains, LogProbabilities
from agents.common.language.planning import LanguagePlans, operations, part_changes
from agents.common.qwen2_5_vl import checkpoint
from agents.common.qwen2_5_vl.config import QWEN_3B, QWEN_7B, QwenConfig
from agents.common.qwen2_5_vl.decode import reading
from agents.common.qwen2_5_vl.image import fitting, grid_of
from agents.common.qwen2_5_vl.language import expand
from agents.common.qwen2_5_vl.tokens import generation_settings
from agents.common.sets.answers import AnswerSet, read_answers
from agents.qwen_vl import network
from agents.qwen_vl.agent import Prompts
from agents.qwen_vl.network import QwenVL, inputs_of, parse_config, read_config
from agents.qwen_vl.options import (
    ARCHITECTURE,
    LANGUAGE_MODEL,
    MERGER,
    VISION,
    QwenVLInference,
    QwenVLPlanning,
    QwenVLShown,
    QwenVLStep,
    QwenVLTraining,
)
from agents.qwen_vl.samples import QuestionDataset, QwenVLPolicy, collate
from vlnbench.training.family.changes import Change
from vlnbench.training.family.checkpoints import Checkpoints, Placement, Source
from vlnbench.training.family.plans import LOGIT_BYTES, OVERLAP, Acting, Probe, Published
from vlnbench.training.family.policy import Policy, Sampling
from vlnbench.training.family.trains import Known, PartRule, Samples, Stretches

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
WORDS = (*NAMES, "<answer>", "</answer>", "<think>", "</think>")
"""One token each, so that a small network's answers are short."""
BYTES = 256
END, IMAGE = BYTES + SPECIAL.index("<|im_end|>"), BYTES + SPECIAL.index("<|image_pad|>")
ROWS = 288

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "qwen-vl-tiny": {
        "model_type": "qwen2_5_vl",
        "architectures": [ARCHITECTURE],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": ROWS,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "default", "mrope_section": [2, 3, 3]},
        "rms_norm_eps": 1e-6,
        "image_token_id": IMAGE,
        "eos_token_id": END,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vision_config": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "depth": 2,
            "num_heads": 2,
            "window_size": 112,
            "fullatt_block_indexes": [1],
            "out_hidden_size": 64,
        },
    }
}


def _write_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in WORDS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "additional_special_tokens": list(SPECIAL[1:]),
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 32768,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


SIZES: Mapping[str, Mapping[str, Any]] = {
    "qwen2.5-vl-3b": {**QWEN_3B, "architectures": [ARCHITECTURE]},
    "qwen2.5-vl-7b": {**QWEN_7B, "architectures": [ARCHITECTURE]},
}
"""Published sizes: 3,754,622,976 and 8,292,166,656 parameters."""

FRAME = (480, 640)


def _shown(options: QwenVLShown) -> tuple[int, int]:
    """Earlier frames and pixels of one, of options that are settled."""
    assert options.history is not None
    assert options.max_pixels is not None
    return options.history, options.max_pixels


def _frames(options: QwenVLShown) -> tuple[int, tuple[int, int]]:
    """Frames of a question late in an episode, and their height and width."""
    history, most = _shown(options)
    return history + 1, fitting(*FRAME, most)


Shown = TypeVar("Shown", bound=QwenVLShown)

TABLE = (
    PartRule(r"visual\.merger\.", MERGER),
    PartRule(r"visual\.", VISION),
    PartRule("lm_head|.*embed", LANGUAGE_MODEL, hidden=False),
    PartRule("", LANGUAGE_MODEL),
)


class QwenVLCheckpoints(Checkpoints):
    """Folders of plain Qwen2.5-VL."""

    def config(self, source: Source, options: QwenVLStep | QwenVLInference) -> QwenConfig:
        if source.kind == "sizes":
            return parse_config(SIZES[source.name], source.name)
        if source.path is None:
            return parse_config(PRESETS[source.name], source.name)
        return read_config(source.path)

    def settled(self, source: Source, options: Shown) -> Shown:
        return filled(options, asdict(inputs_of(source.path, options)) | {"prompt": None})

    def check_files(self, path: Path, options: QwenVLTraining) -> None:
        found = self.config(Source("checkpoint", str(path), path), options)
        checkpoint.load_tokenizer(path, found, options.tokenizer)
        list(checkpoint.read_files(path, options.tokenizer))

    def content_hash(self, path: Path, options: QwenVLTraining) -> str:
        return content_hash(checkpoint.read_files(path, options.tokenizer))

    def create(self, preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
        with tempfile.TemporaryDirectory() as made:
            source = Path(made)
            _write_tokenizer(source)
            (source / GENERATION).write_text(json.dumps({"eos_token_id": [END]}, indent=2) + "\n")
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = QwenVL(parse_config(PRESETS[preset], "preset"))
                for parameter in model.parameters():
                    if parameter.ndim > 1:
                        torch.nn.init.normal_(parameter, std=0.02 if len(parameter) == ROWS else 0.05)
            checkpoint.save(model, folder, inputs_of(None, QwenVLShown()), source=source)

    def placement(self, options: QwenVLTraining, device: torch.device) -> Placement:
        attn = "sdpa" if options.attn == "auto" else options.attn
        found = place(str(device), options.dtype, attn, torch.bfloat16)
        return Placement(found.dtype, {"attn": found.attn})

    def load(self, path: Path, options: QwenVLTraining, placement: Placement) -> QwenVL:
        attn = placement.notes["attn"]
        return network.load(path, dtype=placement.dtype, device=placement.device, attn=attn)

    def shapes(self, model: QwenVL) -> QwenVL:
        with torch.device("meta"):
            return QwenVL(model.config)

    def save(self, model: QwenVL, folder: Path, base: Path, options: QwenVLTraining) -> None:
        inputs = inputs_of(base, options)
        checkpoint.save(model, folder, inputs, source=base, tokenizer=options.tokenizer)


class QwenVLTrains(LanguageTrains, LogProbabilities):
    """Vision tower, merger and language model, trained on answers to questions along walks."""

    def parts(self, model: QwenVL, options: QwenVLStep) -> Sequence[PartRule]:
        return TABLE

    def read_set(self, folder: Path, options: QwenVLTraining) -> AnswerSet:
        assert options.actions_per_answer is not None  # settled
        return read_answers(folder, options.actions_per_answer)

    def samples(
        self, sets: Sequence[Any], model: QwenVL, base: Path, options: QwenVLTraining, known: Known | None
    ) -> list[Samples]:
        prompts = Prompts(_tokenizer(model, base, options), inputs_of(base, options))
        return [QuestionDataset(each, prompts) for each in sets]

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return collate(samples)

    def stretches(self, model: QwenVL, cached: bool) -> Stretches:
        visual = model.visual
        return Stretches(("vision", "language"), visual.patch_embed, visual.merger)

    def policy(self, model: QwenVL, base: Path, options: QwenVLTraining, sampling: Sampling) -> Policy:
        tokenizer = _tokenizer(model, base, options)
        prompts = Prompts(tokenizer, inputs_of(base, options))
        return QwenVLPolicy(model, generation_settings(base, tokenizer), prompts, sampling)


class QwenVLPlans(LanguagePlans):
    """Questions late in an episode, which show all the frames they may."""

    def build(self, config: QwenConfig, options: QwenVLPlanning) -> QwenVL:
        return QwenVL(config, eager=options.attn == "eager")

    def probe(self, config: QwenConfig, options: QwenVLPlanning, device: str) -> Probe:
        shown, size = _frames(options)
        ids = [1] * options.text_tokens + [config.image_token] * shown + [1] * options.answer_tokens
        labels = [IGNORED] * (len(ids) - options.answer_tokens) + [1] * options.answer_tokens
        frames = torch.zeros(shown, *size, 3, dtype=torch.uint8, device=device)
        batch = {
            "input_ids": [ids] * options.batch,
            "frames": [frames] * options.batch,
            "labels": [labels] * options.batch,
        }
        tokens = options.text_tokens + options.answer_tokens + shown * grid_of(*size).cells
        return Probe(batch, tokens=tokens, supervised=options.answer_tokens, width=config.vocab_size)

    def flops(self, config: QwenConfig, options: QwenVLStep, parts: Mapping[str, int], tokens: int) -> float:
        shown, size = _frames(options)
        return operations(options, parts, 4 * grid_of(*size).cells * shown, tokens, (VISION,), LANGUAGE_MODEL)

    def published(self, config: QwenConfig, options: QwenVLPlanning) -> Published:
        """VLM-R1 takes log-probabilities row by row, of logits at every position, in their own type."""
        bucket = config.hidden_size**2
        size = LOGIT_BYTES if options.learns_from == "labels" else (4, 4)
        return Published("VLM-R1's scripts with zero3.json", size, bucket, round(OVERLAP * 2 * bucket))

    def changes(self, options: QwenVLPlanning) -> Iterator[Change]:
        yield from _fewer_shown(options, "results")
        yield from part_changes(options, VISION, LANGUAGE_MODEL, "vision tower frozen")

    def inference_network(self, config: QwenConfig, options: QwenVLInference) -> QwenVL:
        return QwenVL(config)

    def inference(self, network: QwenVL, config: QwenConfig, options: QwenVLInference) -> Acting:
        """A question late in an episode. Nothing stays on the GPU from one to the next: frames are the host's."""
        images, (height, width) = _frames(options)
        ids = [0] * options.text_tokens + [config.image_token] * images
        rows = [expand(ids, [grid_of(height, width)] * images, config.image_token)] * options.max_batch
        frames = torch.zeros(images, height, width, 3, dtype=torch.uint8, device="meta")

        def read() -> Tensor:
            return reading(network, rows, torch.cat([network.images(frames) for _ in rows]))

        return Acting(caches={}, passes={"reading a question with its frames": read})

    def inference_changes(self, options: QwenVLInference) -> Iterator[Change]:
        yield from super().inference_changes(options)
        yield from _fewer_shown(options, "answers")


def _fewer_shown(options: QwenVLShown, what: str) -> Iterator[Change]:
    """Ways to show less, after which there are other results or answers, as `what` says."""
    history, most = _shown(options)
    if most > 100_352:
        half = most // 2
        yield Change(
            "pixels", f"--max-pixels {half}", 13, (("max_pixels", half),), f"coarser frames: other {what}"
        )
    if history > 1:
        half = history // 2
        price = f"less of the way is shown: other {what}"
        yield Change("history", f"--history {half}", 14, (("history", half),), price)


def _tokenizer(model: QwenVL, base: Path, options: QwenVLTraining) -> Any:
    return checkpoint.load_tokenizer(base, model.config, options.tokenizer)
