"""What planning the memory of an acting JanusVLN takes: VGGT's kept frames, and both passes of a step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from agents.common.qwen2_5_vl.config import PATCH
from agents.common.qwen2_5_vl.decode import read
from agents.common.qwen2_5_vl.image import grid_of
from agents.common.qwen2_5_vl.language import expand
from agents.janusvln.decode import look
from agents.janusvln.network.geometry import FrameCache
from agents.janusvln.network.model import JanusVLN
from agents.janusvln.training.options import JanusVLNInference
from agents.janusvln.training.planning import shown_size
from vlnbench.training.family.changes import Change
from vlnbench.training.family.plans import Acting

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
    history = options.num_history or 8
    if history > 4:
        price = "sees less of the way: other answers"
        yield Change("history", "--num-history 4", 14, (("num_history", 4),), price)
    if options.image_width is None or options.image_width > 448:
        price = "half the tokens of an image: other answers, not trained for it"
        yield Change("width", "--image-width 448", 18, (("image_width", 448),), price)
