"""Memory of episodes: asked for once, in sizes that fit again, and counted by a plan as it is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from agents.common.decoders.cache import STEP
from agents.common.decoders.turns import Decoder
from agents.common.towers.vggt import FrameCache
from agents.janusvln.options import JanusVLNInference
from agents.streamvln.options import StreamVLNInference
from tests.agents.streamvln.test_decode import SETTINGS, play
from tests.agents.streamvln.tiny import tiny_model
from vlnbench.training.family.find import find_family
from vlnbench.training.inference_options import InferenceOptions
from vlnbench.training.memory.inference import plan_inference, remedies


def test_room_for_frames_is_asked_for_once() -> None:
    cache, places = FrameCache(2, 3), set()
    for number in range(9):
        frame = torch.full((1, 4, 2), float(number))
        keys, _ = cache.put(0, frame, frame)
        cache.seen += 1
        places.add(keys.untyped_storage().data_ptr())
    assert len(places) == 1
    assert cache.bytes == 2 * 6 * frame.nbytes


def test_windows_are_kept_in_sizes_that_fit_again() -> None:
    decoder = Decoder(tiny_model(), SETTINGS, max_new_tokens=8)
    play(decoder, range(3))
    each = decoder.cache_bytes_per_token
    sizes = [window.cache.untyped_storage().nbytes() for window in decoder._windows.values()]
    assert {size % (STEP * each) for size in sizes} == {0}
    assert all(decoder.window_length(slot) % STEP for slot in range(3))


@pytest.mark.parametrize(
    "options", [JanusVLNInference(model="janusvln-7b"), StreamVLNInference(model="streamvln-8b")]
)
def test_a_plan_counts_the_episodes_that_are_under_way(options: InferenceOptions) -> None:
    one, four = plan_inference(options), plan_inference(replace(options, envs=4))
    name = next(iter(one.caches))
    assert four.caches[name] == 4 * one.caches[name]
    assert four.passes == one.passes
    full = plan_inference(replace(options, envs=4, gpus=f"1x{(one.peak + one.margin) / 2**30 + 0.1:.2f}GiB"))
    assert full.fits != "yes"
    found = remedies(full, find_family("", options.model, "--model"))
    assert any("--envs 1" in change.text for remedy in found for change in remedy.changes)
