"""Tokens drawn by chance, from numbers that depend on seeds alone: not on what is drawn beside them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from agents.common.decoders.generate import Row
from agents.common.upload import upload


class Draws(NamedTuple):
    """Tokens to be drawn for an answer: of which slot, from which place in it on, and how many positions."""

    slot: int
    place: int
    tokens: int


class Sampler:
    """Draws tokens of answers in slots, and knows the log-probabilities of those that were kept.

    temperature, top_p: as of `Sampling`. top_k: of so many tokens at most, which share the probability. A draw is
    the inverse of the cumulated distribution, most likely first,
    at a number that the answer's seed and the place in it decide on.
    """

    def __init__(self, temperature: float, top_p: float = 1.0, top_k: int | None = None) -> None:
        self._temperature, self._top_p, self._top_k = temperature, top_p, top_k
        self._generators: dict[int, random.Random] = {}
        self._numbers: dict[int, list[float]] = {}
        self._log_probabilities: dict[int, dict[int, float]] = {}

    def begin(self, slot: int, seed: str) -> None:
        """An answer begins in a slot."""
        self._generators[slot], self._numbers[slot], self._log_probabilities[slot] = random.Random(seed), [], {}

    def end(self, slot: int, tokens: int) -> list[float]:
        """The log-probabilities of an answer's tokens, at the temperature, before any were left out."""
        found = self._log_probabilities.pop(slot)
        return [found[place] for place in range(tokens)]

    def draw(self, wanted: Sequence[Draws], logits: Tensor) -> list[list[int]]:
        """A token for every position of every row, 0 where none is wanted; logits: (rows, positions, vocabulary).

        A place that is drawn again, after another token before it, takes the same number.
        """
        rows, positions = logits.shape[:2]
        numbers = torch.zeros(rows, positions, dtype=torch.float64)
        for row, (slot, place, tokens_wanted) in enumerate(wanted):
            for offset in range(tokens_wanted):
                numbers[row, offset] = self._number(slot, place + offset)
        log_probabilities = torch.log_softmax(logits.float() / self._temperature, dim=-1)
        ordered, tokens = log_probabilities.double().exp().sort(dim=-1, descending=True, stable=True)
        if self._top_k is not None:
            ordered = ordered[..., : self._top_k]
            ordered = ordered / ordered.sum(dim=-1, keepdim=True)
        sums = ordered.cumsum(dim=-1)
        if self._top_p < 1:  # up to the first token with which the share is reached
            ends = (sums < self._top_p).sum(dim=-1, keepdim=True).clamp(max=sums.shape[-1] - 1)
            total = sums.gather(-1, ends)
        else:
            ends, total = torch.full_like(sums[..., :1], sums.shape[-1] - 1).long(), sums[..., -1:]
        drawn = (sums <= upload(numbers, sums.device)[..., None] * total).sum(dim=-1, keepdim=True)
        picked = tokens.gather(-1, torch.minimum(drawn, ends))
        logs = log_probabilities.gather(-1, picked)
        told: list[list[list[float]]] = torch.cat([picked.double(), logs.double()], dim=-1).tolist()  # in one copy
        for row, (slot, place, tokens_wanted) in enumerate(wanted):
            for offset in range(tokens_wanted):
                self._log_probabilities[slot][place + offset] = told[row][offset][1]
        return [[int(token) for token, _ in row] for row in told]

    def choose(self, rows: Sequence[Row], logits: Tensor) -> list[list[int]]:
        """Draw the token of every position, as `generate.Choose` says."""
        wanted = [Draws(row.turn.slot, len(row.output), 1 + len(row.guess)) for row in rows]
        return self.draw(wanted, logits)

    def _number(self, slot: int, place: int) -> float:
        """From 0 to below 1."""
        numbers = self._numbers[slot]
        while len(numbers) <= place:
            numbers.append(self._generators[slot].random())
        return numbers[place]
