from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from agents.common.decoders.sampling import Draws, Sampler


def drawn(sampler: Sampler, logits: Tensor, count: int) -> list[int]:
    """First tokens of so many answers, each in a slot of its own."""
    for slot in range(count):
        sampler.begin(slot, str(slot))
    rows = sampler.draw([Draws(slot, 0, 1) for slot in range(count)], logits.expand(count, 1, -1))
    return [row[0] for row in rows]


def test_tokens_come_as_often_as_their_chances_say() -> None:
    log_probabilities = torch.tensor([0.1, 0.6, 0.3])
    found = drawn(Sampler(1.0), log_probabilities.log(), 4000)
    shares = [found.count(token) / 4000 for token in range(3)]
    assert shares == pytest.approx(log_probabilities.tolist(), abs=3 * math.sqrt(0.25 / 4000))


def test_a_temperature_evens_the_chances_out() -> None:
    found = drawn(Sampler(2.0), torch.tensor([0.8, 0.2]).log(), 4000)
    assert found.count(1) / 4000 == pytest.approx(1 / 3, abs=0.025)
    cold = drawn(Sampler(0.01), torch.tensor([0.8, 0.2]).log(), 200)
    assert set(cold) == {0}


def test_the_likeliest_tokens_are_enough_for_their_share() -> None:
    """0.6 alone is less than 0.8, with 0.3 it is more: the third is never drawn, the others as they are."""
    found = drawn(Sampler(1.0, 0.8), torch.tensor([0.1, 0.6, 0.3]).log(), 4000)
    assert 0 not in found
    assert found.count(1) / 4000 == pytest.approx(2 / 3, abs=0.025)
    assert set(drawn(Sampler(1.0, 0.5), torch.tensor([0.1, 0.6, 0.3]).log(), 100)) == {1}


def test_a_place_that_is_drawn_again_takes_the_same_number() -> None:
    """Positions behind a wrong guess are drawn in vain and again, and rows beside it change nothing."""
    logits = torch.zeros(1, 3, 50)
    sampler = Sampler(1.0)
    sampler.begin(0, "seed")
    whole = sampler.draw([Draws(0, 0, 3)], logits)[0]
    again = Sampler(1.0)
    again.begin(0, "seed")
    again.begin(1, "other")
    assert again.draw([Draws(1, 0, 2), Draws(0, 0, 1)], logits.expand(2, 3, -1))[1][0] == whole[0]
    assert again.draw([Draws(0, 1, 2)], logits)[0][:2] == whole[1:]
    assert again.end(0, 3) == pytest.approx([-math.log(50)] * 3)


def test_chances_are_those_at_the_temperature_before_any_token_is_left_out() -> None:
    sampler = Sampler(2.0, 0.1)
    sampler.begin(0, "seed")
    assert sampler.draw([Draws(0, 0, 1)], torch.tensor([[[0.8, 0.2]]]).log()) == [[0]]
    assert sampler.end(0, 1) == pytest.approx([math.log(2 / 3)])
