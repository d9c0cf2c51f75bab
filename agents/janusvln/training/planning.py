"""What planning the memory of JanusVLN takes: a batch of the longest samples, operations, what could change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from agents.common.language.planning import operations, part_changes
from agents.common.qwen2_5_vl.config import PATCH
from agents.common.qwen2_5_vl.image import grid_of
from agents.common.qwen2_5_vl.network import IGNORED
from agents.janusvln.config import JanusVLNConfig
from agents.janusvln.image import resized_height
from agents.janusvln.training.options import LLM, VGGT, VISION, JanusVLNPlanning, JanusVLNStep
from vlnbench.errors import UsageError
from vlnbench.training.family.changes import Change
from vlnbench.training.family.plans import Probe

SUPERVISED = 6
"""Labels of a sample: the longest action, the block's end and the newline."""
CAMERA = (640, 480)
"""Pixels of the frames that are planned with."""


def shown_size(config: JanusVLNConfig) -> tuple[int, int]:
    """Height and width of a frame of `CAMERA` as the network sees it."""
    width = config.image_width
    return min(resized_height(*CAMERA, width), width), width


def probe(config: JanusVLNConfig, options: JanusVLNPlanning, device: str) -> Probe:
    """Samples with the whole history, of equal length."""
    if options.text_tokens <= SUPERVISED:
        raise UsageError(f"--text-tokens {options.text_tokens}: the answer alone takes {SUPERVISED}")
    images = options.history + 1
    ids = [0] * (options.text_tokens - SUPERVISED) + [config.image_token] * images + [0] * SUPERVISED
    labels = [IGNORED] * (len(ids) - SUPERVISED) + [0] * SUPERVISED
    height, width = shown_size(config)
    frames = torch.zeros(images, height, width, 3, dtype=torch.uint8, device=device)
    batch = {
        "input_ids": [ids] * options.batch,
        "frames": [frames] * options.batch,
        "labels": [labels] * options.batch,
    }
    tokens = options.text_tokens + images * grid_of(height, width).cells
    return Probe(batch, tokens=tokens, supervised=SUPERVISED, width=config.vocab_size)


def flops(config: JanusVLNConfig, options: JanusVLNStep, parts: Mapping[str, int], tokens: int) -> float:
    """See `operations`; VGGT sees the same patches as Qwen's tower."""
    height, width = shown_size(config)
    patches = (height // PATCH) * (width // PATCH) * (options.history + 1)
    return operations(options, parts, patches, tokens, (VISION, VGGT), LLM)


def changes(options: JanusVLNPlanning) -> Iterator[Change]:
    """Changes after which another model is trained."""
    if options.history > 4:
        half = options.history // 2
        yield Change("history", f"--history {half}", 14, (("history", half),), "less memory of the way: lower SR")
    if options.image_width is None or options.image_width > 448:
        yield Change("width", "--image-width 448", 14, (("image_width", 448),), "half the tokens of an image")
    yield from part_changes(options, VISION, LLM, "vision tower frozen, as published")
