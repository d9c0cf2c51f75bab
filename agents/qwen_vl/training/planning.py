"""What planning the memory of Qwen2.5-VL takes: published sizes, a batch of typical length, what could change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from agents.common.language.planning import operations, part_changes
from agents.common.qwen2_5_vl.config import QWEN_3B, QWEN_7B, QwenConfig
from agents.common.qwen2_5_vl.image import grid_of
from agents.common.qwen2_5_vl.network import IGNORED
from agents.qwen_vl.config import ARCHITECTURE
from agents.qwen_vl.image import fitting
from agents.qwen_vl.training.options import LANGUAGE_MODEL, VISION, QwenVLPlanning, QwenVLStep
from vlnbench.training.family import Probe
from vlnbench.training.memory.changes import Change, Fields

SIZES: Mapping[str, Mapping[str, Any]] = {
    "qwen2.5-vl-3b": {**QWEN_3B, "architectures": [ARCHITECTURE]},
    "qwen2.5-vl-7b": {**QWEN_7B, "architectures": [ARCHITECTURE]},
}
"""Published sizes: 3,754,622,976 and 8,292,166,656 parameters."""

FRAME = (480, 640)


def probe(config: QwenConfig, options: QwenVLPlanning, device: str) -> Probe:
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


def flops(config: QwenConfig, options: QwenVLStep, parts: Mapping[str, int], tokens: int) -> float:
    """See `operations`."""
    patches = 4 * grid_of(*fitting(*FRAME, options.max_pixels)).cells * (options.history + 1)
    return operations(options, parts, patches, tokens, (VISION,), LANGUAGE_MODEL)


def changes(options: QwenVLPlanning) -> Iterator[Change]:
    """Changes after which another model is trained."""
    fields: Fields
    if options.max_pixels > 100_352:
        fields = (("max_pixels", options.max_pixels // 2),)
        yield Change(
            "pixels", f"--max-pixels {options.max_pixels // 2}", 13, fields, "coarser frames: other results"
        )
    if options.history > 2:
        fields = (("history", options.history // 2),)
        yield Change("history", f"--history {options.history // 2}", 14, fields, "less of the way is shown")
    yield from part_changes(options, VISION, LANGUAGE_MODEL, "vision tower frozen")
