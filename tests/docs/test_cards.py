"""Model cards say what the weights and the committed runs say."""

from __future__ import annotations

import pytest
from huggingface_hub import ModelCard

from tests.docs.cards import CARD, card
from vlnbench.training.sources import shipped


@pytest.mark.parametrize("name", sorted(shipped()))
def test_the_card_is_up_to_date(name: str) -> None:
    committed = (shipped()[name] / CARD).read_text(encoding="utf-8")
    assert committed == card(name), "run `python -m tests.docs.cards`"


def test_the_hub_can_read_cards() -> None:
    for name, folder in shipped().items():
        data = ModelCard.load(folder / CARD).data
        assert (data.license, data.library_name) == ("mit", "vlnbench"), name
        for result in data.eval_results or ():
            assert 0 <= result.metric_value <= 100, name
