from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from agents.common.files import GenerationSettings
from agents.streamvln.network.cache import CacheView
from agents.streamvln.network.decode import Decoder
from agents.streamvln.network.lean import LeanBlocks, LeanTower, lean_enough
from agents.streamvln.network.model import StreamVLN
from tests.agents.streamvln.tiny import END, tiny_images, tiny_model

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
    expected = model.model(
        inputs_embeds=embeddings,
        attention_mask=valid,
        position_ids=positions,
        past_key_values=CacheView(theirs, past),
        use_cache=True,
    ).last_hidden_state
    causal = torch.ones(length, past + length, dtype=torch.bool).tril(past)
    found = LeanBlocks(model.model, config)(embeddings, positions, ours, causal & valid[:, None])
    assert_close(found, expected, **TOLERANCE)
    assert_close(ours, theirs, **TOLERANCE)


@torch.inference_mode()
def test_the_tower_is_that_of_transformers() -> None:
    model = tiny_model().eval()
    images = tiny_images(4)
    assert_close(LeanTower(model)(images), model.patch_features(images), **TOLERANCE)


def test_only_small_models_in_float32_with_sdpa_on_a_cpu_are_run_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    assert lean_enough(model)
    assert not lean_enough(tiny_model().to(torch.bfloat16))
    assert not lean_enough(StreamVLN(model.config, "eager"))
    monkeypatch.setattr("agents.streamvln.network.lean.FEW_PARAMETERS", 10)
    assert not lean_enough(model)
    assert Decoder(model, GenerationSettings(frozenset({END}), 1.05))._lean is None
