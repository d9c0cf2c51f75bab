"""Answers of unlike lengths: none waits for the longest beside it, and each is what it would be alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from torch import Tensor

from agents.common.decoders.cache import TurnCache
from agents.common.decoders.generate import Row
from agents.common.decoders.turns import Decoder
from tests.agents.streamvln.test_decode import SETTINGS, following, opening
from tests.agents.streamvln.tiny import END, tiny_model

LENGTHS = (12, 2, 3, 2, 4, 2, 2, 3)
"""Tokens of the answer in every slot."""


class Ending(Decoder):
    """Ends answers after so many tokens, by slot; knows how many rows each of its passes fed, by kind."""

    def __init__(self, *arguments: Any, lengths: Mapping[int, int], **options: Any) -> None:
        super().__init__(*arguments, max_new_tokens=16, **options)
        self._lengths = lengths
        self.joined, self.passed = list[int](), list[int]()

    def _choose(self, rows: Sequence[Row], logits: Tensor) -> list[list[int]]:
        best = super()._choose(rows, logits)
        for row, told in zip(rows, best, strict=True):
            told[:] = [token if token != END else END - 1 for token in told]
            if (last := self._lengths[row.turn.slot] - 1 - len(row.output)) < len(told):
                told[last] = END
        return best

    def _join(self, coming: Sequence[Row], *others: Any) -> None:
        self.joined.append(len(coming))
        super()._join(coming, *others)

    def _pass(self, seated: Sequence[Row], cache: TurnCache) -> None:
        self.passed.append(len(seated))
        super()._pass(seated, cache)


def rounds(decoder: Ending, slots: Sequence[int]) -> list[list[list[int]]]:
    """Answers of two rounds: windows that begin, and that go on."""
    first = decoder.run([opening(slot, range(1, slot + 2)) for slot in slots])
    again = [following(slot, answer, seed=slot) for slot, answer in zip(slots, first, strict=True)]
    return [first, decoder.run(again)]


@pytest.mark.parametrize("most", [8, 4, 3])
def test_answers_of_unlike_lengths_are_those_that_they_are_alone(most: int) -> None:
    slots, lengths = range(len(LENGTHS)), dict(enumerate(LENGTHS))
    decoder = Ending(tiny_model(), SETTINGS, lengths=lengths, max_batch=most)
    together = rounds(decoder, slots)
    assert [[len(answer) for answer in answers] for answers in together] == [list(LENGTHS)] * 2
    for slot in slots:
        alone = Ending(tiny_model(), SETTINGS, lengths=lengths)
        assert [[answers[slot]] for answers in together] == rounds(alone, [slot])
        assert decoder.window_length(slot) == alone.window_length(slot)


def test_no_answer_waits_for_the_longest_beside_it() -> None:
    """Chunks of four took 11 + 3 passes of four rows each to generate."""
    decoder = Ending(tiny_model(), SETTINGS, lengths=dict(enumerate(LENGTHS)), max_batch=4)
    decoder.run([opening(slot) for slot in range(len(LENGTHS))])
    assert sum(decoder.joined) == len(LENGTHS)
    assert sum(decoder.passed) == sum(length - 1 for length in LENGTHS), "rows whose answers were whole were fed"
    assert max(decoder.passed) <= 4
    assert len(decoder.passed) == max(LENGTHS) - 1
    assert decoder.passed[-1] == 1


def test_few_free_seats_are_given_away_together() -> None:
    """Whoever joins takes a pass of its own, so that one seat of eight waits for another."""
    lengths = {slot: 2 + slot for slot in range(12)}
    decoder = Ending(tiny_model(), SETTINGS, lengths=lengths, max_batch=8)
    decoder.run([opening(slot) for slot in range(12)])
    assert decoder.joined == [8, 2, 2]
