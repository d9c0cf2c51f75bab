"""What planning the memory of JanusVLN takes: a batch of the longest samples, operations, what could change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from agents.janusvln.config import PATCH, JanusVLNConfig
from agents.janusvln.image import grid_of, resized_height
from agents.janusvln.network.model import IGNORED
from agents.janusvln.training.options import LLM, VGGT, VISION, JanusVLNPlanning, JanusVLNStep
from vlnbench.errors import UsageError
from vlnbench.training.family import Probe
from vlnbench.training.memory.changes import Change

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
    """Operations of training on one sample, by the usual count of two per weight and position in a forward pass.

    A backward pass takes as many for the gradients of activations, and again for those of the weights that train;
    checkpointing takes the forward pass once more. What is quadratic in the length is left out.
    """
    height, width = shown_size(config)
    patches = (height // PATCH) * (width // PATCH) * (options.history + 1)
    again, seen = int(options.gradient_checkpointing), VISION in options.parts
    encoders = 2.0 * patches * (parts[VISION] * (3 + again if seen else 1) + parts[VGGT])
    rest = 2.0 * (sum(parts.values()) - parts[VISION] - parts[VGGT]) * tokens
    return encoders + rest * (2 + int(LLM in options.parts) + again)


def changes(options: JanusVLNPlanning) -> Iterator[Change]:
    """Changes after which another model is trained."""
    parts = options.parts
    if options.history > 4:
        half = options.history // 2
        yield Change("history", f"--history {half}", 14, (("history", half),), "less memory of the way: lower SR")
    if options.image_width is None or options.image_width > 448:
        yield Change("width", "--image-width 448", 14, (("image_width", 448),), "half the tokens of an image")
    if VISION in parts and len(parts) > 1:
        rest = tuple(part for part in parts if part != VISION)
        text = f"--tunable-parts {','.join(rest)}"
        yield Change("vision", text, 12, (("tunable_parts", rest),), "vision tower frozen, as published")
    if LLM in parts and len(parts) > 1 and not options.lora_rank:
        rest = tuple(part for part in parts if part != LLM)
        text = f"--tunable-parts {','.join(rest)}"
        adapters = (("tunable_parts", rest), ("lora_rank", 64), ("zero", min(options.zero, 2)))
        price = "language model learns through adapters only"
        yield Change("language", f"{text} --lora-rank 64 --zero {min(options.zero, 2)}", 15, adapters, price)
        yield Change("language", text, 20, (("tunable_parts", rest),), "language model frozen")
