"""What planning the memory of JanusVLN takes, of training and of acting: sizes, batches, what could change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from agents.common.language.planning import operations, part_changes
from agents.common.qwen2_5_vl.config import PATCH, QWEN_3B, QWEN_7B
from agents.common.qwen2_5_vl.decode import read
from agents.common.qwen2_5_vl.image import grid_of
from agents.common.qwen2_5_vl.language import expand
from agents.common.qwen2_5_vl.network import IGNORED
from agents.common.towers.vggt import FrameCache
from agents.janusvln.decode import look
from agents.janusvln.network import JanusVLN, JanusVLNConfig, resized_height
from agents.janusvln.options import (
    ARCHITECTURE,
    LLM,
    VGGT,
    VISION,
    JanusVLNInference,
    JanusVLNInputs,
    JanusVLNPlanning,
    JanusVLNStep,
)
from vlnbench.errors import UsageError
from vlnbench.training.family.changes import Change
from vlnbench.training.family.plans import Acting, Probe

_JANUS: Mapping[str, Any] = {"architectures": [ARCHITECTURE], "lam": 0.2}

SIZES: Mapping[str, Mapping[str, Any]] = {
    "janusvln-7b": {**QWEN_7B, **_JANUS},
    "janusvln-3b": {**QWEN_3B, **_JANUS},
}
"""config.json by name: of the released JanusVLN (Qwen2.5-VL-7B: 9,314,832,390 parameters with VGGT), and of the
same on Qwen2.5-VL-3B, which its code can train (4,770,995,718)."""


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
    images = config.num_history + 1
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
    patches = (height // PATCH) * (width // PATCH) * (config.num_history + 1)
    return operations(options, parts, patches, tokens, (VISION, VGGT), LLM)


def changes(options: JanusVLNPlanning) -> Iterator[Change]:
    """Changes after which another model is trained."""
    history = options.history or JanusVLNInputs.history
    if history > 4:
        half = history // 2
        yield Change("history", f"--history {half}", 14, (("history", half),), "less memory of the way: lower SR")
    if options.image_width is None or options.image_width > 448:
        yield Change("width", "--image-width 448", 14, (("image_width", 448),), "half the tokens of an image")
    yield from part_changes(options, VISION, LLM, "vision tower frozen, as published")


PUBLISHED = (
    "an evaluation with the published code and the 7 B took 27.3 GB at its peak on an A100 of 40 GB, as a "
    "reproduction of it reports (github.com/CHANGJianshuo/JanusVLN_reproduction)"
)


def acting(network: JanusVLN, options: JanusVLNInference) -> Acting:
    """A step late in an episode, when all frames are kept and the whole history is shown."""
    config, count = network.config, options.max_batch
    height, width = shown_size(config)
    kept = options.first_frames + options.recent_frames + 1
    frame = network.vggt.aggregator.frame_bytes(height, width, network.dtype)
    caches = [FrameCache(options.first_frames, options.recent_frames) for _ in range(count)]
    frames = torch.zeros(count, height, width, 3, dtype=torch.uint8)
    sizes = network.vggt.aggregator.sizes
    tokens = 1 + sizes.registers + (height // PATCH) * (width // PATCH)
    one = torch.empty(sizes.heads, tokens, sizes.width // sizes.heads, dtype=network.dtype, device="meta")
    for cache in caches:  # buffers of their full size, made before anything is counted
        cache.seen = kept
        for block in range(sizes.depth - 1):
            cache.put(block, one, one)
    images = config.num_history + 1
    grid = grid_of(height, width)
    ids = [0] * options.text_tokens + [config.image_token] * images
    rows = [expand(ids, [grid] * images, config.image_token) for _ in range(count)]
    fused = torch.zeros(count * images * grid.cells, config.hidden_size, dtype=network.dtype, device="meta")
    return Acting(
        caches={f"VGGT's {kept} frames per episode": count * kept * frame},
        passes={
            "looking at a frame": lambda: look(network, frames, caches),
            "reading a question": lambda: network.logits(read(network, rows, fused)[1]).float(),
        },
        notes=[PUBLISHED] if options.model == "janusvln-7b" else [],
    )


def acting_changes(options: JanusVLNInference) -> Iterator[Change]:
    """Changes after which other answers are given."""
    for recent, cost in ((24, 12), (8, 16)):
        if recent < options.recent_frames:
            price = "VGGT forgets sooner: other answers"
            yield Change("window", f"--recent-frames {recent}", cost, (("recent_frames", recent),), price)
    history = options.history or JanusVLNInputs.history
    if history > 4:
        price = "sees less of the way: other answers"
        yield Change("history", "--history 4", 14, (("history", 4),), price)
    if options.image_width is None or options.image_width > 448:
        price = "half the tokens of an image: other answers, not trained for it"
        yield Change("width", "--image-width 448", 18, (("image_width", 448),), price)
