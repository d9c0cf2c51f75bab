"""Answers of Qwen2.5-VL to many questions at once, greedy or by chance.

Every question is asked anew: which frames it shows changes from one to the next, so nothing of the language
model's work on one can be used in another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.qwen2_5_vl.decode import Row, decode, in_batches, penalized
from agents.common.qwen2_5_vl.image import grid_of
from agents.common.qwen2_5_vl.language import expand
from agents.qwen_vl.network import QwenVL


@dataclass(frozen=True)
class Question:
    """A request for an answer: ids with a placeholder per image, and the frames, uint8 (k, height, width, 3)."""

    slot: int
    input_ids: list[int]
    frames: Tensor


Choose = Callable[[Sequence[Question], Sequence[Sequence[int]], Tensor], list[int]]
"""The next token of every answer; answers so far, logits float32 (rows, vocabulary)."""


Allowed = Callable[[Sequence[int]], Sequence[int]]
"""Tokens that may follow an answer so far; none where it is whole."""


class Answerer:
    """Answers questions, at most `max_batch` in one pass.

    The repetition penalty sees the question and the answer so far. An answer ends with an end token, included, or
    after `max_new_tokens`. `choose` takes the place of greedy decoding, without the penalty then. `allowed`:
    nothing else is answered.
    """

    def __init__(
        self,
        model: QwenVL,
        settings: GenerationSettings,
        *,
        max_new_tokens: int = 64,
        max_batch: int = 8,
        choose: Choose | None = None,
        allowed: Allowed | None = None,
    ) -> None:
        self.model = model.eval()
        self.settings = settings
        self.max_new_tokens, self.max_batch = max_new_tokens, max_batch
        self._choose, self._allowed = choose, allowed

    @torch.inference_mode()
    def run(self, questions: Sequence[Question]) -> list[list[int]]:
        """The answers to `questions`, in their order.

        Raises ValueError, before any is answered, where placeholders and images do not match.
        """
        token = self.model.config.image_token
        rows = [
            expand(each.input_ids, [grid_of(*each.frames.shape[1:3])] * len(each.frames), token)
            for each in questions
        ]
        return in_batches(rows, self.max_batch, lambda batch: self._answer(batch, questions, rows))

    def _answer(self, batch: list[int], questions: Sequence[Question], rows: Sequence[Row]) -> list[list[int]]:
        """The answers to a batch of all questions, by their positions."""
        asked = [questions[i] for i in batch]
        return decode(
            self.model,
            [rows[i] for i in batch],
            torch.cat([self.model.images(question.frames) for question in asked]),
            self.settings,
            self.max_new_tokens,
            lambda answers, logits, seen: self._next(asked, answers, logits, seen),
        )

    def _next(
        self, questions: Sequence[Question], answers: Sequence[Sequence[int]], logits: Tensor, seen: Tensor
    ) -> list[int]:
        if self._choose is not None:
            return self._choose(questions, answers, logits)
        scores = penalized(logits, seen, self.settings.repetition_penalty)
        if self._allowed is not None:
            for row, answer in zip(scores, answers, strict=True):
                if following := list(self._allowed(answer)):
                    kept = row[following].clone()
                    row.fill_(-torch.inf)
                    row[following] = kept
        found: list[int] = scores.argmax(-1).tolist()
        return found
