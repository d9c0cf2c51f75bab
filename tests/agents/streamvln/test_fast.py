from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.cache import CacheView
from agents.common.decoders.qwen2 import read
from agents.common.decoders.turns import Decoder
from agents.common.packing.fast import FastBlocks, FastTower, fast_enough
from agents.common.packing.skeleton import Skeleton
from agents.streamvln import network as checkpoint
from agents.streamvln.network import StreamVLN
from tests.agents.streamvln.tiny import END, tiny_images, tiny_model, write_tiny

TOLERANCE = {"rtol": 0.0, "atol": 2e-5}
"""On the machine of the first comparison both were equal bit by bit; another may add in another order."""


@pytest.mark.parametrize("past", [0, 37])
@pytest.mark.parametrize("length", [1, 9])
@torch.inference_mode()
def test_blocks_are_those_of_transformers(past: int, length: int) -> None:
    model = tiny_model().eval()
    config = model.config
    torch.manual_seed(length)
    shape = (config.num_hidden_layers, 2, 3, config.num_key_value_heads, past + length, config.head_dim)
    entries = torch.randn(shape)
    embeddings = torch.randn(3, length, config.hidden_size)
    valid = torch.ones(3, past + length, dtype=torch.bool)
    hole = past // 3
    valid[1, 2 : 2 + hole] = False
    positions = past + torch.arange(length).expand(3, -1) - torch.tensor([0, hole, 0])[:, None]
    ours, theirs = entries.clone(), entries.clone()
    expected = read(model.model, embeddings, positions, CacheView(theirs, past), valid)
    causal = torch.ones(length, past + length, dtype=torch.bool).tril(past)
    found = FastBlocks(model.model, config)(embeddings, positions, ours, causal & valid[:, None])
    assert_close(found, expected, **TOLERANCE)
    assert_close(ours, theirs, **TOLERANCE)


@torch.inference_mode()
def test_the_tower_is_that_of_transformers() -> None:
    model = tiny_model().eval()
    images = tiny_images(4)
    assert_close(FastTower(model)(images), model.patch_features(images), **TOLERANCE)


def test_only_small_models_in_float32_with_sdpa_on_a_cpu_are_run_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    assert fast_enough(model)
    assert not fast_enough(tiny_model().to(torch.bfloat16))
    assert not fast_enough(StreamVLN(model.config, "eager"))
    monkeypatch.setattr("agents.common.packing.fast.FEW_PARAMETERS", 10)
    assert not fast_enough(model)
    assert Decoder(model, GenerationSettings(frozenset({END}), 1.05))._fast is None


@torch.inference_mode()
def test_a_bare_network_computes_the_same(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    skeleton, whole = checkpoint.load(tmp_path, fast=True), checkpoint.load(tmp_path)
    assert isinstance(skeleton.model, Skeleton)
    assert {name: each.shape for name, each in skeleton.named_parameters()} == {
        name: each.shape for name, each in whole.named_parameters()
    }
    images, like = tiny_images(4), whole.model.norm.weight
    assert torch.equal(FastTower(skeleton)(images), FastTower(whole)(images))
    positions = torch.arange(whole.config.max_position_embeddings)[None]
    for one, other in zip(
        skeleton.model.rotary_emb(like, positions), whole.model.rotary_emb(like, positions), strict=True
    ):
        assert torch.equal(one, other)


def test_what_cannot_be_run_this_way_is_loaded_whole(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    assert not isinstance(checkpoint.load(tmp_path, fast=True, attn="eager").model, Skeleton)
    assert not isinstance(checkpoint.load(tmp_path, fast=True, dtype=torch.bfloat16).model, Skeleton)


@pytest.mark.slow
def test_a_small_agent_loads_no_transformers() -> None:
    code = (
        "import sys; from vlnbench.rollout.agents import load_agent; load_agent('streamvln-tiny');"
        "print('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
