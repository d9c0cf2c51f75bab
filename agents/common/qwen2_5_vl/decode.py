"""Answers of Qwen2.5-VL's language model to many questions at once, token by token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.batches import Batches, groups
from agents.common.qwen2_5_vl.image import Grid
from agents.common.qwen2_5_vl.language import KeyValues, expand
from agents.common.qwen2_5_vl.network import QwenNetwork

Row = tuple[Tensor, Tensor]
"""A question's expanded ids and their positions."""


class Question(Protocol):
    """A request for an answer: ids with a placeholder per image."""

    @property
    def slot(self) -> int: ...

    @property
    def input_ids(self) -> list[int]: ...


Choose = Callable[[Sequence[Any], Sequence[Sequence[int]], Tensor], list[int]]
"""The next token of every answer; of questions, answers so far, and logits float32 (rows, vocabulary)."""

Q = TypeVar("Q", bound=Question)


class Decoder(ABC, Generic[Q]):
    """Answers questions, at most `max_batch` in one pass.

    The repetition penalty sees the question and the answer so far, image placeholders included, as published. An
    answer ends with an end token, included, or after `max_new_tokens`. `choose` takes the place of greedy
    decoding, without the penalty then.
    """

    def __init__(
        self,
        model: QwenNetwork,
        settings: GenerationSettings,
        max_new_tokens: int,
        max_batch: int,
        choose: Choose | None,
    ) -> None:
        self.settings = settings
        self.max_new_tokens, self._batches = max_new_tokens, Batches(max_batch)
        self._network, self._choose = model.eval(), choose

    @abstractmethod
    def grids(self, question: Q) -> list[Grid]:
        """The grid of every image that a question shows."""

    @abstractmethod
    def fused(self, question: Q) -> Tensor:
        """Embeddings of a question's images (images * embeddings, hidden)."""

    @torch.inference_mode()
    def run(self, questions: Sequence[Q]) -> list[list[int]]:
        """The answers to `questions`, in their order. A slot may occur once.

        Raises ValueError, before any is answered, where placeholders and images do not match.
        """
        token = self._network.config.image_token
        rows = [expand(each.input_ids, self.grids(each), token) for each in questions]
        return in_batches(rows, self._batches, lambda batch: self._answer(batch, questions, rows))

    def _answer(self, batch: list[int], questions: Sequence[Q], rows: Sequence[Row]) -> list[list[int]]:
        """The answers to a batch of all questions, by their positions."""
        asked = [questions[i] for i in batch]
        return decode(
            self._network,
            [rows[i] for i in batch],
            torch.cat([self.fused(question) for question in asked]),
            self.settings,
            self.max_new_tokens,
            lambda answers, logits, seen: self._next(asked, answers, logits, seen),
        )

    def _next(
        self, questions: Sequence[Q], answers: Sequence[Sequence[int]], logits: Tensor, seen: Tensor
    ) -> list[int]:
        """The next token of every answer. seen: which tokens a row has, (rows, vocabulary)."""
        if self._choose is not None:
            return self._choose(questions, answers, logits)
        scores = penalized(logits, seen, self.settings.repetition_penalty)
        best: list[int] = self.allowed(answers, scores).argmax(-1).tolist()
        return best

    def allowed(self, answers: Sequence[Sequence[int]], scores: Tensor) -> Tensor:
        """The scores (rows, vocabulary) of what may follow; of all, if a family does not say otherwise."""
        return scores


def in_batches(
    rows: Sequence[Row], batches: Batches, answer: Callable[[list[int]], list[list[int]]]
) -> list[list[int]]:
    """The answers to `rows`, in their order; those of like length are answered together.

    answer: of a batch, by its positions in `rows`.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))

    def chunk(some: Sequence[int]) -> list[list[int]]:
        left, answers = list(some), []
        for size in groups([len(rows[i][0]) for i in some]):
            answers += answer(left[:size])
            left = left[size:]
        return answers

    answers = dict(zip(order, batches.run(order, chunk), strict=True))
    return [answers[i] for i in range(len(rows))]


def decode(
    model: QwenNetwork,
    rows: Sequence[Row],
    fused: Tensor,
    settings: GenerationSettings,
    longest: int,
    choose: Callable[[Sequence[Sequence[int]], Tensor, Tensor], list[int]],
) -> list[list[int]]:
    """Answer one batch. fused: embeddings of all its images. choose: the next token of every answer, by answers so
    far, float32 logits (rows, vocabulary), and which tokens a row has seen, of the same shape. An answer ends with
    an end token, included, or after `longest`."""
    device = model.device
    past, hidden = read(model, rows, fused)
    following = torch.tensor([int(positions.max()) + 1 for _, positions in rows], device=device)
    seen = torch.zeros(len(rows), model.config.vocab_size, dtype=torch.bool, device=device)
    for row, (ids, _) in zip(seen, rows, strict=True):
        row[ids.to(device)] = True
    answers: list[list[int]] = [[] for _ in rows]

    def is_whole(answer: Sequence[int]) -> bool:
        return len(answer) == longest or bool(answer and answer[-1] in settings.eos)

    while True:
        best = choose(answers, model.logits(hidden).float(), seen)
        for answer, token in zip(answers, best, strict=True):
            if not is_whole(answer):
                answer.append(token)
        if all(map(is_whole, answers)):
            return answers
        tokens = torch.tensor(best, device=device)
        seen[torch.arange(len(rows)), tokens] = True
        embedded = model.model.embed_tokens(tokens[:, None])
        hidden = model.model(embedded, following.expand(3, -1)[..., None], past)[:, 0]
        following = following + 1


def read(model: QwenNetwork, rows: Sequence[Row], fused: Tensor) -> tuple[KeyValues, Tensor]:
    """What questions leave behind: keys and values, and the last states (rows, hidden)."""
    lengths = [len(ids) for ids, _ in rows]
    past = KeyValues(model.config, lengths, like=fused)
    return past, model.hidden(rows, fused, past)[torch.arange(len(rows)), torch.tensor(lengths) - 1]


def penalized(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits of which those that are `seen` are made less likely."""
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)
