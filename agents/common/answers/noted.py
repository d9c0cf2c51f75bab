"""What is known of a network's answers beside their tokens: how much was read for them, how likely they were."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from agents.common.upload import upload
from vlnbench.interfaces import Action, Answer

_AT_ONCE = 4  # rows whose scores are added up together: that takes as much memory as the scores of these


class Noted:
    """Of the last answer in every slot. Numbers stay on the device until somebody wants to know them."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[int, list[tuple[int, Tensor]]]] = {}

    def begin(self, slot: int, prompt_tokens: int) -> None:
        """An answer begins, for which so many tokens were read, embeddings of images among them."""
        self._slots[slot] = prompt_tokens, []

    def add(self, places: Sequence[tuple[int, int]], logits: Tensor, chosen: Sequence[Sequence[int]]) -> None:
        """Tokens that were chosen by scores (rows, positions, vocabulary); places: slot and place of the first.

        Of places that are chosen again the last choice counts.
        """
        ids = upload(torch.tensor(chosen), logits.device)
        sums = [part.logsumexp(-1) for part in torch.split(logits, _AT_ONCE)]
        logs = logits.gather(-1, ids[..., None])[..., 0].sub_(torch.cat(sums) if len(sums) > 1 else sums[0])
        for row, (slot, place) in enumerate(places):
            self._slots[slot][1].append((place, logs[row]))

    def noting(self, choose: Callable[[Sequence[Any], Tensor], list[list[int]]]) -> Any:
        """The same choice of `decoders.generate`, noted."""

        def chosen(rows: Sequence[Any], logits: Tensor) -> list[list[int]]:
            found = choose(rows, logits)
            for row in rows:
                if not row.output:
                    self.begin(row.turn.slot, row.length - len(row.guess))
            self.add([(row.turn.slot, len(row.output)) for row in rows], logits, found)
            return found

        return chosen

    def of(self, slot: int, tokens: int) -> tuple[int | None, float | None]:
        """Tokens that were read for the last answer in a slot, and the log-probability of its so many tokens."""
        if slot not in self._slots:
            return None, None
        prompt_tokens, parts = self._slots[slot]
        found, logs = [math.nan] * tokens, torch.cat([logs for _, logs in parts]).tolist()  # in one copy
        for place, each in parts:
            known, logs = logs[: len(each)][: max(0, tokens - place)], logs[len(each) :]
            found[place : place + len(known)] = known
        total = math.fsum(found)
        return prompt_tokens, total if math.isfinite(total) else None


def told(
    decoder: Any,
    slot: int,
    text: str,
    answer: Sequence[int],
    actions: Sequence[Action] | None,
    images: int,
) -> Answer:
    """An answer as an agent tells it. decoder: its `noted`, if it has that, knows the rest. actions: None where
    nothing could be read from it."""
    noted = getattr(decoder, "noted", None)
    prompt_tokens, log_probability = (None, None) if noted is None else noted.of(slot, len(answer))
    return Answer(
        text,
        actions or (),
        unparsable=actions is None,
        prompt_tokens=prompt_tokens,
        images=images,
        answer_tokens=len(answer),
        log_probability=log_probability,
    )
