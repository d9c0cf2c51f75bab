"""Answers of Qwen2.5-VL to many questions at once, greedy or by chance.

Every question is asked anew: which frames it shows changes from one to the next, so nothing of the language
model's work on one can be used in another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agents.common.batches import groups
from agents.common.files import GenerationSettings
from agents.janusvln.image import grid_of
from agents.janusvln.network.language import KeyValues, expand
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
        order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))
        answers: dict[int, list[int]] = {}
        for start in range(0, len(order), self.max_batch):
            chunk = order[start : start + self.max_batch]
            for size in groups([len(rows[i][0]) for i in chunk]):
                batch, chunk = chunk[:size], chunk[size:]
                answered = self._answer([questions[i] for i in batch], [rows[i] for i in batch])
                answers.update(zip(batch, answered, strict=True))
        return [answers[i] for i in range(len(rows))]

    def _answer(self, questions: Sequence[Question], rows: Sequence[tuple[Tensor, Tensor]]) -> list[list[int]]:
        model, device = self.model, self.model.device
        lengths = [len(ids) for ids, _ in rows]
        images = torch.cat([model.images(question.frames) for question in questions])
        past = KeyValues(model.config, lengths, like=images)
        hidden = model.hidden(rows, images, past)[torch.arange(len(rows)), torch.tensor(lengths) - 1]
        following = torch.tensor([int(positions.max()) + 1 for _, positions in rows], device=device)
        seen = torch.zeros(len(rows), model.config.vocab_size, dtype=torch.bool, device=device)
        for row, (ids, _) in zip(seen, rows, strict=True):
            row[ids.to(device)] = True
        answers: list[list[int]] = [[] for _ in rows]
        while True:
            best = self._next(questions, answers, model.logits(hidden).float(), seen)
            for answer, token in zip(answers, best, strict=True):
                if not self._is_whole(answer):
                    answer.append(token)
            if all(self._is_whole(answer) for answer in answers):
                return answers
            tokens = torch.tensor(best, device=device)
            seen[torch.arange(len(rows)), tokens] = True
            embedded = model.model.embed_tokens(tokens[:, None])
            hidden = model.model(embedded, following.expand(3, -1)[..., None], past)[:, 0]
            following = following + 1

    def _is_whole(self, answer: Sequence[int]) -> bool:
        return len(answer) == self.max_new_tokens or bool(answer and answer[-1] in self.settings.eos)

    def _next(
        self, questions: Sequence[Question], answers: Sequence[Sequence[int]], logits: Tensor, seen: Tensor
    ) -> list[int]:
        if self._choose is not None:
            return self._choose(questions, answers, logits)
        penalty = self.settings.repetition_penalty
        penalized = torch.where(logits < 0, logits * penalty, logits / penalty)
        scores = torch.where(seen, penalized, logits)
        if self._allowed is not None:
            for row, answer in zip(scores, answers, strict=True):
                if following := list(self._allowed(answer)):
                    kept = row[following].clone()
                    row.fill_(-torch.inf)
                    row[following] = kept
        found: list[int] = scores.argmax(-1).tolist()
        return found
