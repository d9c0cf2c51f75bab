"""What planning the memory of Qwen2.5-VL takes: published sizes, a batch of typical length, what could change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from agents.janusvln.image import grid_of
from agents.janusvln.network.model import IGNORED
from agents.qwen_vl.config import ARCHITECTURE, QwenVLConfig
from agents.qwen_vl.image import fitting
from agents.qwen_vl.training.options import LANGUAGE_MODEL, VISION, QwenVLPlanning, QwenVLStep
from vlnbench.training.family import Probe
from vlnbench.training.memory.changes import Change, Fields

_VISION: Mapping[str, Any] = {
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "depth": 32,
    "num_heads": 16,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
_COMMON: Mapping[str, Any] = {
    "model_type": "qwen2_5_vl",
    "architectures": [ARCHITECTURE],
    "rope_theta": 1e6,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "rms_norm_eps": 1e-6,
    "image_token_id": 151655,
    "torch_dtype": "bfloat16",
}
SIZES: Mapping[str, Mapping[str, Any]] = {
    "qwen2.5-vl-3b": {
        **_COMMON,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "vision_config": {**_VISION, "out_hidden_size": 2048},
    },
    "qwen2.5-vl-7b": {
        **_COMMON,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
        "vision_config": {**_VISION, "out_hidden_size": 3584},
    },
}
"""Published sizes: 3,754,622,976 and 8,292,166,656 parameters."""

FRAME = (480, 640)


def probe(config: QwenVLConfig, options: QwenVLPlanning, device: str) -> Probe:
    """Questions late in an episode, which show all the frames they may."""
    shown = options.history + 1
    size = fitting(*FRAME, options.max_pixels)
    text = [1] * options.text_tokens
    ids = [*text, *[config.image_token] * shown, *[1] * options.answer_tokens]
    labels = [IGNORED] * (len(ids) - options.answer_tokens) + [1] * options.answer_tokens
    frames = torch.zeros(shown, *size, 3, dtype=torch.uint8, device=device)
    batch = {
        "input_ids": [ids] * options.batch,
        "frames": [frames] * options.batch,
        "labels": [labels] * options.batch,
    }
    tokens = options.text_tokens + options.answer_tokens + shown * grid_of(*size).cells
    return Probe(batch, tokens=tokens, supervised=options.answer_tokens, width=config.vocab_size)


def flops(config: QwenVLConfig, options: QwenVLStep, parts: Mapping[str, int], tokens: int) -> float:
    """Operations of training on one window, by the usual count of two per weight and position in a forward pass.

    A backward pass takes as many for the gradients of activations, and again for those of the weights that train;
    checkpointing takes the forward pass once more. What is quadratic in the length is left out.
    """
    again = int(options.gradient_checkpointing)
    patches = 4 * grid_of(*fitting(*FRAME, options.max_pixels)).cells * (options.history + 1)
    vision = 2.0 * parts[VISION] * patches
    rest = 2.0 * sum(count for part, count in parts.items() if part != VISION) * tokens
    language = int(LANGUAGE_MODEL in options.parts)
    return vision * (3 + again if VISION in options.parts else 1) + rest * (2 + language + again)


def changes(options: QwenVLPlanning) -> Iterator[Change]:
    """Changes after which another model is trained."""
    fields: Fields
    parts = options.parts
    if options.max_pixels > 100_352:
        fields = (("max_pixels", options.max_pixels // 2),)
        yield Change(
            "pixels", f"--max-pixels {options.max_pixels // 2}", 13, fields, "coarser frames: other results"
        )
    if options.history > 2:
        fields = (("history", options.history // 2),)
        yield Change("history", f"--history {options.history // 2}", 14, fields, "less of the way is shown")
    if VISION in parts and len(parts) > 1:
        rest = tuple(part for part in parts if part != VISION)
        text = f"--tunable-parts {','.join(rest)}"
        yield Change("vision", text, 12, (("tunable_parts", rest),), "vision tower frozen")
    if LANGUAGE_MODEL in parts and not options.lora_rank:
        rest = tuple(part for part in parts if part != LANGUAGE_MODEL)
        text = f"--tunable-parts {','.join(rest)} --lora-rank 64" if rest else "--lora-rank 64"
        fields = (("tunable_parts", rest), ("lora_rank", 64))
        yield Change("language", text, 15, fields, "language model learns through adapters only")
