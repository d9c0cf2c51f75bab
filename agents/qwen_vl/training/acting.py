"""What planning the memory of an acting Qwen2.5-VL takes: a question with all the frames that it may show."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from agents.common.qwen2_5_vl.decode import Row, read
from agents.common.qwen2_5_vl.image import grid_of
from agents.common.qwen2_5_vl.language import expand
from agents.qwen_vl.image import fitting
from agents.qwen_vl.network import QwenVL
from agents.qwen_vl.training.options import QwenVLInference
from agents.qwen_vl.training.planning import FRAME
from vlnbench.training.family import Acting
from vlnbench.training.memory.changes import Change


def acting(network: QwenVL, options: QwenVLInference) -> Acting:
    """A question late in an episode. Nothing stays on the GPU from one to the next: frames are the host's."""
    config, images = network.config, options.history + 1
    height, width = fitting(*FRAME, options.max_pixels)
    ids = [0] * options.text_tokens + [config.image_token] * images
    grid = grid_of(height, width)
    rows = [expand(ids, [grid] * images, config.image_token) for _ in range(options.max_batch)]
    frames = torch.zeros(images, height, width, 3, dtype=torch.uint8, device="meta")
    return Acting(caches={}, passes={"reading a question with its frames": lambda: _read(network, rows, frames)})


def _read(network: QwenVL, rows: list[Row], frames: Tensor) -> Tensor:
    fused = torch.cat([network.images(frames) for _ in rows])
    return network.logits(read(network, rows, fused)[1]).float()


def acting_changes(options: QwenVLInference) -> Iterator[Change]:
    """Changes after which other answers are given."""
    if options.max_pixels > 100_352:
        half = options.max_pixels // 2
        yield Change(
            "pixels", f"--max-pixels {half}", 13, (("max_pixels", half),), "coarser frames: other answers"
        )
    if options.history > 1:
        half = options.history // 2
        price = "sees less of the way: other answers"
        yield Change("history", f"--history {half}", 14, (("history", half),), price)
