"""Memory of episodes: asked for once, in sizes that fit again, and counted by a plan as it is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agents.common.decoders import cache, planning
from agents.common.decoders.cache import STEP, TurnCache
from agents.common.decoders.turns import Decoder
from agents.common.towers.vggt import FrameCache
from agents.janusvln.agent import JanusVLNAgent
from agents.janusvln.options import JanusVLNInference
from agents.streamvln.options import StreamVLNInference
from tests.agents.streamvln.test_decode import SETTINGS, play
from tests.agents.streamvln.tiny import tiny_model
from tests.cuda.pretended import CUDA, pretended
from tests.cuda.test_agents import make, seen
from tests.fakes import make_episode
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


BIG = StreamVLNInference(model="streamvln-8b")


@pytest.mark.parametrize("options", [JanusVLNInference(model="preset:janusvln-tiny"), BIG])
def test_a_plan_counts_the_episodes_that_are_under_way(options: InferenceOptions) -> None:
    one, four = plan_inference(options), plan_inference(replace(options, envs=4))
    name = next(iter(one.caches))
    assert four.caches[name] == 4 * one.caches[name]
    assert four.passes == one.passes


def test_fewer_episodes_are_a_remedy() -> None:
    gpus = f"1x{plan_inference(BIG).high / 2**30 + 0.1:.2f}GiB"
    full = plan_inference(replace(BIG, envs=4, gpus=gpus))
    assert full.fits != "yes"
    found = remedies(full, find_family("", BIG.model, "--model"))
    assert any("--envs 1" in change.text for remedy in found for change in remedy.changes)


def test_a_plan_says_what_a_run_keeps(tmp_path: Path) -> None:
    """JanusVLN's frames of four episodes, of which one at a time is acted on."""
    agent = make("janusvln", tmp_path, "cpu")
    assert isinstance(agent, JanusVLNAgent)
    for slot in range(4):
        agent.reset(slot, make_episode(slot).for_agent(), slot)
        agent.act({slot: seen(agent, slot, 0)})
    kept = sum(agent._decoder.memory(slot).cache.bytes for slot in range(4))
    options = JanusVLNInference(model="preset:janusvln-tiny", dtype="fp32", envs=4, max_batch=1)
    (planned,) = plan_inference(options).caches.values()
    assert planned == kept == 4 * agent.episode_bytes


@pytest.mark.parametrize(("step", "most"), [(16, 2), (64, 3), (1024, 1)])
def test_a_plan_counts_the_columns_that_a_run_keeps(step: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """StreamVLN's windows of three episodes, as long as the longest, and those of a pass side by side."""
    monkeypatch.setattr(cache, "GPU_STEP", step)
    made: list[TurnCache] = []
    seat = TurnCache.seat
    monkeypatch.setattr(TurnCache, "seat", lambda own, *given: (made.append(own), seat(own, *given)))
    with pretended():
        decoder = Decoder(tiny_model().to(CUDA), SETTINGS, max_new_tokens=8, max_batch=most)
        play(decoder, range(3))
    kept = max(window.cache._base.held.untyped_storage().nbytes() for window in decoder._windows.values())
    tokens = max(decoder.window_length(slot) for slot in range(3))
    monkeypatch.setattr(planning, "window_tokens", lambda *_: tokens)
    planned = list(planning.acting(decoder.model, most, 8, kept=3).caches.values())
    assert planned == [3 * kept, made[-1].buffer.nbytes]
