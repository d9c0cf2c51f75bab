"""The loss of packed windows against that of transformers' own modules on padded ones: value and gradients."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from agents.common.decoders.placeholders import IGNORED, IMAGE, MEMORY
from agents.common.packing import loss as packing
from agents.common.packing.attention import Attention, attend, attend_back, joined
from agents.common.packing.loss import pack
from agents.streamvln.network import StreamVLN
from agents.streamvln.options import FAMILY as STREAMVLN
from agents.streamvln.options import StreamVLNTraining
from tests.agents.streamvln.tiny import tiny_model
from tests.families import Whole
from vlnbench.training import data
from vlnbench.training.family.trains import rule_of

FAMILY = Whole(STREAMVLN)
PACKED = {"gradient_checkpointing": False, "zero": 0}


def options(**changes: Any) -> StreamVLNTraining:
    return StreamVLNTraining(checkpoint="x", out=Path("x"), **{**PACKED, **changes})


def window(rng: random.Random, turns: int, memory: int) -> dict[str, Any]:
    """A window with random text; labels on some of it, among them at its end."""
    ids: list[int] = [rng.randrange(50) for _ in range(rng.randint(3, 9))]
    ids += [MEMORY] if memory else []
    labels = [IGNORED] * len(ids)
    for _ in range(turns):
        asked, told = ([rng.randrange(50) for _ in range(rng.randint(1, 5))] for _ in range(2))
        ids += [*asked, IMAGE, *told]
        labels += [IGNORED] * (len(asked) + 1) + told
    weights = [rng.choice((1.0, 3.2)) for _ in ids]
    images = torch.rand(memory + turns, 3, 96, 96) * 2 - 1
    return {"input_ids": ids, "labels": labels, "weights": weights, "images": images}


def batch(*windows: dict[str, Any], weighted: bool = True) -> dict[str, Any]:
    names = ("input_ids", "labels", "images", *(["weights"] if weighted else []))
    return {name: [each[name] for each in windows] for name in names}


def windows() -> list[dict[str, Any]]:
    torch.manual_seed(0)
    rng = random.Random(0)
    return [window(rng, turns, memory) for turns, memory in ((3, 0), (1, 2), (2, 2), (6, 1))]


def pair() -> tuple[StreamVLN, StreamVLN]:
    """Packed and not, with the same weights."""
    packed, plain = tiny_model().train(), tiny_model().train()
    pack(packed, options())
    assert packed.packed_loss is not None
    assert plain.packed_loss is None
    return packed, plain


@pytest.mark.parametrize("frozen", ["", "mm_vision_tower", "mm_language_model"])
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_gradients_are_those_of_padded_windows(weighted: bool, frozen: str) -> None:
    packed, plain = pair()
    given = batch(*windows(), weighted=weighted)
    losses = []
    for model in (packed, plain):
        for name, parameter in model.named_parameters():
            rule = rule_of(FAMILY.parts(model, None), name)
            parameter.requires_grad_(rule.part != frozen and rule.trains != "never")
        losses.append(FAMILY.loss(model, given))
        losses[-1].backward()
    assert_close(losses[0], losses[1], rtol=1e-6, atol=1e-6)
    expected = dict(plain.named_parameters())
    for name, parameter in packed.named_parameters():
        assert (parameter.grad is None) == (expected[name].grad is None), name
        if parameter.grad is not None:
            assert_close(parameter.grad, expected[name].grad, rtol=1e-4, atol=2e-6, msg=name)


def test_it_is_left_to_transformers_what_works_on_its_modules() -> None:
    for changes in ({"gradient_checkpointing": True}, {"compile": True}, {"zero": 3}, {"lora_rank": 2}):
        model = tiny_model()
        pack(model, options(**changes))
        assert model.packed_loss is None, changes
        assert FAMILY.weighting(model) is None
    for model in (tiny_model("eager"), tiny_model(attention_dropout=0.1), tiny_model().to(torch.bfloat16)):
        pack(model, options())
        assert model.packed_loss is None


def test_a_packed_network_has_the_same_names_and_logits() -> None:
    packed, plain = pair()
    assert packed.state_dict().keys() == plain.state_dict().keys()
    given = batch(*windows())
    with torch.no_grad():
        assert_close(packed(**given).logits, plain(**given).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_dealt_windows_count_as_in_their_owners_batch(weighted: bool) -> None:
    """Whatever ranks the windows are dealt to, the mean of the ranks' losses is that of the owners' batches."""
    model, _ = pair()
    every = windows()
    owners = [0, 0, 1, 1]
    weighting = FAMILY.weighting(model)
    takers = data.dealt([weighting.cost((len(each["images"]), 30)) for each in every], 2)
    assert takers != owners
    batches = [batch(*every[:2], weighted=weighted), batch(*every[2:], weighted=weighted)]
    expected = torch.stack([FAMILY.loss(model, each) for each in batches]).mean()
    totals = [sum(weighting.masses(each)) for each in batches]
    found = []
    for rank in range(2):
        mine = [place for place, taker in enumerate(takers) if taker == rank]
        dealt = batch(*(every[place] for place in mine), weighted=weighted)
        found.append(FAMILY.loss(model, weighting.weighed(dealt, [1 / totals[owners[place]] for place in mine])))
    assert_close(torch.stack(found).mean(), expected)


@pytest.mark.parametrize("model", [0, 1])
def test_under_autocast_products_are_bfloat16_and_gradients_point_where_they_did(model: int) -> None:
    """Packed and not: the mean angle is that of rounding to eight bits, some two degrees."""
    network = pair()[model]
    given = batch(*windows())
    gradients = []
    for enabled in (False, True):
        network.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = FAMILY.loss(network, given)
        assert loss.dtype is torch.float32
        loss.backward()
        found = {name: each.grad for name, each in network.named_parameters() if each.grad is not None}
        assert all(each.dtype is torch.float32 for each in found.values())
        gradients.append((loss.detach(), found))
    (exact, expected), (rounded, found) = gradients
    assert_close(rounded, exact, rtol=1e-2, atol=0)
    assert rounded != exact
    assert found.keys() == expected.keys()
    for name, each in found.items():
        if "k_proj.bias" not in name:  # moving all keys changes no attention: its gradient is rounding alone
            assert torch.cosine_similarity(each.flatten(), expected[name].flatten(), dim=0) > 0.99, name


def test_what_a_batch_is_filled_up_with_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the tokens behind each window nor rows beside those that labels look at, nor images."""
    network = pair()[0]
    network.auxiliary = None
    found = []
    for rows, images in ((1, 1), (32, 4), (64, 16)):
        monkeypatch.setattr(packing, "ROWS", rows)
        monkeypatch.setattr("agents.streamvln.network.IMAGES", images)
        network.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = FAMILY.loss(network, batch(*windows()))
        loss.backward()
        grads = {name: each.grad for name, each in network.named_parameters() if each.grad is not None}
        found.append((loss.detach(), grads))
    (loss, gradients), *others = found
    for filled, changed in others:
        assert_close(filled, loss, rtol=2e-3, atol=0)
        for name, each in gradients.items():
            if "k_proj.bias" not in name:
                assert torch.cosine_similarity(changed[name].flatten(), each.flatten(), dim=0) > 0.99, name


@pytest.mark.parametrize("causal", [True, False])
def test_attention_in_bfloat16_is_that_in_float32(causal: bool) -> None:
    """Of windows one after the other and of images: outputs and gradients to bfloat16's eight bits."""
    torch.manual_seed(0)
    lengths = (7, 40, 1)
    given = [torch.randn(48, 4, 8) for _ in range(3)] if causal else [torch.randn(6, 4, 8, 8) for _ in range(3)]
    of_output = torch.randn(given[0].shape)

    def outcome(dtype: torch.dtype) -> list[torch.Tensor]:
        queries, keys, values = low = [each.to(dtype).requires_grad_() for each in given]
        if not causal:
            mixed = Attention.apply(*low)  # type: ignore[no-untyped-call]
            return [mixed, *torch.autograd.grad(mixed, low, of_output.to(dtype))]
        seen = attend(queries, keys, values, lengths)
        return [joined(seen), *attend_back(of_output.to(dtype), queries, keys, values, seen, lengths)]

    for low, exact in zip(outcome(torch.bfloat16), outcome(torch.float32), strict=True):
        assert low.dtype is torch.bfloat16
        assert (low.float() - exact).norm() < 0.02 * exact.norm()
