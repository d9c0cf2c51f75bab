"""What PyTorch's allocator reserves for what agents keep and compute, at published sizes, in the model of it that
plans have: little more than is in use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.common.decoders.cache import TurnCache
from agents.common.towers.vggt import FrameCache
from agents.janusvln.options import JanusVLNInference
from agents.navila.options import NaVILAInference
from agents.qwen_vl.options import QwenVLInference
from agents.streamvln.options import StreamVLNInference
from agents.uninavid.options import UniNaVidInference
from vlnbench.training.inference_options import InferenceOptions
from vlnbench.training.memory.inference import plan_inference
from vlnbench.training.memory.replay import replay_passes
from vlnbench.training.memory.tracker import LiveMemory

MOST = 1.3
"""Reserved beside what is in use, at most."""


@pytest.mark.parametrize(
    "options",
    [
        JanusVLNInference(model="janusvln-7b", max_batch=2),
        StreamVLNInference(model="streamvln-8b", max_batch=2),
        QwenVLInference(model="qwen2.5-vl-7b", max_batch=2),
        NaVILAInference(model="navila-8b", max_batch=2),
        UniNaVidInference(model="uninavid-7b", max_batch=2),
    ],
    ids=lambda options: options.model,
)
def test_an_agent_reserves_little_more_than_it_uses(options: InferenceOptions) -> None:
    planned = plan_inference(options)
    assert planned.allocated > 14e9
    assert planned.allocated + planned.fragmentation + planned.kept <= MOST * planned.allocated


def reserved(beside: int, kept: LiveMemory) -> tuple[float, float]:
    """GB that are reserved, and that are in use at most."""
    held = replay_passes([beside], [kept.events])
    return held.reserved / 1e9, (beside + kept.peak) / 1e9


@pytest.mark.parametrize(("episodes", "before"), [(1, 62.6), (2, 106.6)])
def test_room_for_frames_that_is_asked_for_once_leaves_no_holes(episodes: int, before: float) -> None:
    """JanusVLN at the 7 B size: buffers that grow with every eighth frame reserved more than twice as much."""

    def seen(make: Callable[[], FrameCache]) -> tuple[float, float]:
        frame = torch.empty(16, 1615, 64, dtype=torch.bfloat16, device="meta")
        with LiveMemory() as memory:
            caches = [make() for _ in range(episodes)]
            for _ in range(57):
                for cache in caches:
                    for block in range(23):
                        cache.put(block, frame, frame)
                    cache.seen += 1
        return reserved(18_600_000_000, memory)

    assert seen(lambda: FrameCache(recent=None))[0] == pytest.approx(before, rel=0.02)
    most, used = seen(FrameCache)
    assert used < before / 2
    assert most <= MOST * used


@pytest.mark.parametrize("slots", [1, 4, 8])
def test_windows_of_turns_fit_where_others_were(slots: int) -> None:
    """StreamVLN at the 8 B size: a window of eight turns beside those of other episodes, and the next one."""
    sizes: Any = SimpleNamespace(num_hidden_layers=28, num_key_value_heads=4, head_dim=128)
    like = torch.empty(0, dtype=torch.bfloat16, device="meta")

    def turn(windows: Sequence[Tensor | None], new: Sequence[int]) -> list[Tensor]:
        kept = [0 if window is None else window.shape[-2] for window in windows]
        cache = TurnCache(sizes, slots, max(kept) + max(new), like)
        for slot, window in enumerate(windows):
            cache.seat(slot, window)
        cache.open(range(slots), new)
        for _ in range(4):
            cache.open(range(slots), [1] * slots)
        return [cache.row(slot) for slot in range(slots)]

    with LiveMemory() as memory:
        windows: list[Tensor | None] = [None] * slots
        for number in range(18):
            opens = number % 9 == 0
            new = [(2600 if opens else 236) + 3 * slot for slot in range(slots)]
            windows = [*turn([None] * slots if opens else windows, new)]
        assert windows[0] is not None
        assert windows[0].shape[-2] == 2600 + 8 * 236 + 9 * 4
    most, used = reserved(15_200_000_000, memory)
    assert most <= MOST * used
