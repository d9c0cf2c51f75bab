"""Model cards can be read by those who list models."""

from __future__ import annotations

from huggingface_hub import ModelCard

from tests.docs.cards import CARD
from vlnbench.training.family.sources import shipped


def test_the_hub_can_read_cards() -> None:
    for name, folder in shipped().items():
        data = ModelCard.load(folder / CARD).data
        assert (data.license, data.library_name) == ("mit", "vlnbench"), name
        for result in data.eval_results or ():
            assert 0 <= result.metric_value <= 100, name
