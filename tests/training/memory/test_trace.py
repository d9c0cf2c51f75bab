"""What is counted in shapes only is what a run on the CPU allocates."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
import torch

from agents.streamvln.options import FAMILY, PARTS, StreamVLNPlanning
from tests.families import Whole
from tests.training.geometry import config_of, small_request, traced, write_small
from vlnbench.errors import UsageError
from vlnbench.training.memory.trace import Segment, build, run_pass
from vlnbench.training.memory.tracker import BLOCK, LiveMemory, fused_kernels

COMBINATIONS = [parts for count in (1, 2, 3) for parts in combinations(PARTS, count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("model"))


def segments(request: StreamVLNPlanning, device: str) -> list[Segment]:
    family, config = Whole(FAMILY), config_of(request.model)
    network, _ = build(family, family, config, request, device)
    return run_pass(network, family.probe(config, request, device), family.loss)


@pytest.mark.parametrize("checkpointing", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("parts", COMBINATIONS, ids="+".join)
def test_shapes_take_what_a_real_run_takes(folder: Path, parts: tuple[str, ...], checkpointing: bool) -> None:
    request = small_request(folder, parts, gradient_checkpointing=checkpointing)
    real, shapes = segments(request, "cpu"), segments(request, "meta")
    assert [each.gradient for each in shapes] == [each.gradient for each in real]
    assert shapes[0].peak == pytest.approx(real[0].peak, rel=0.001)
    assert max(each.peak for each in shapes) == pytest.approx(max(each.peak for each in real), rel=0.001)


def test_shapes_take_what_a_real_run_takes_without_fused_attention(folder: Path) -> None:
    request = small_request(folder, PARTS, attn="eager", gradient_checkpointing=False)
    real, shapes = segments(request, "cpu"), segments(request, "meta")
    assert max(each.peak for each in shapes) == pytest.approx(max(each.peak for each in real), rel=0.001)


def test_adapters_are_counted(folder: Path) -> None:
    request = small_request(folder, ("mm_mlp_adapter",), lora_rank=8)
    found = traced(request)
    hidden, inner, kv = 128, 320, 64
    per_block = 8 * (2 * (hidden + hidden) + 2 * (hidden + kv) + 3 * (hidden + inner))
    assert found.parts["lora"] == 3 * per_block
    assert found.trainable == found.parts["lora"] + found.parts["mm_mlp_adapter"]


def test_counts_of_a_sample(folder: Path) -> None:
    found = traced(small_request(folder, PARTS))
    assert found.tokens == 120 + 8 * 4  # 56 / 14 = 4 patches a side, pooled to 2
    assert found.supervised == 4 + 13 * 4
    assert sum(each.gradient for each in found.segments) == found.trainable


def test_activations_shrink_with_checkpointing_and_grow_with_the_batch(folder: Path) -> None:
    def peak(**changes: object) -> int:
        return max(each.peak for each in traced(small_request(folder, PARTS, **changes)).segments)

    assert peak() < 0.5 * peak(gradient_checkpointing=False)
    assert peak(gradient_checkpointing=False, batch=4) > 1.8 * peak(gradient_checkpointing=False)


def test_models_that_do_not_exist() -> None:
    with pytest.raises(
        UsageError,
        match="unknown checkpoint 'streamvln-7b': did you mean 'streamvln-8b'",
    ):
        config_of("streamvln-7b")


def test_live_memory_counts_storages_once_and_until_they_go() -> None:
    before = torch.ones(1000)
    with LiveMemory(width=10) as memory:
        view = before[:10]
        made = torch.zeros(100, 10)
        same = made.view(-1)
        assert memory.live == memory.wide_live == 8 * BLOCK  # 4000 bytes
        del made
        assert memory.live == 8 * BLOCK
        del same
        assert memory.live == memory.wide_live == 0
        assert memory.peak == memory.wide_at_peak == 8 * BLOCK
        memory.restart_peak()
        assert memory.peak == 0
    assert view.shape == (10,)


def test_dropout_keeps_a_byte_per_value_as_on_cuda() -> None:
    values = torch.ones(100, 100, dtype=torch.bfloat16, device="meta", requires_grad=True)
    with fused_kernels(), LiveMemory() as memory:
        dropped = torch.nn.Dropout(0.5)(values)
        assert memory.live == (20_000 + 10_000) // BLOCK * BLOCK + 2 * BLOCK
        (gradient,) = torch.autograd.grad(dropped.sum(), values)
    assert gradient.shape == values.shape
    assert torch.nn.Dropout(0.5).eval()(torch.ones(3)).tolist() == [1, 1, 1]


def test_events_are_what_was_made_and_let_go_of() -> None:
    with LiveMemory() as memory:
        first = torch.zeros(100)
        second = torch.zeros(1000)
        del first
        third = torch.zeros(1)
        del second, third
    assert memory.events.tolist() == [BLOCK, 8 * BLOCK, -1, BLOCK, -2, -3]


def test_what_a_network_asks_of_tensors_without_values() -> None:
    """Networks of transformers leave out frames that are all 0, and put embeddings where token ids are."""
    ids, frames = torch.tensor([3, 1]), torch.zeros(2, 3, 4, 4, device="meta")
    embeddings = torch.zeros(5, 7, device="meta")
    with LiveMemory():
        real = (frames == 0).sum(dim=(1, 2, 3)) != 48
        assert real.tolist() == [True, True]
        assert frames[real].shape == frames.shape
        assert torch.nn.functional.embedding(ids, embeddings).to(ids.device).is_meta
