"""Answers of Qwen2.5-VL's language model to many questions at once, token by token."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.cache import CacheColumns, CacheView, TurnCache
from agents.common.decoders.generate import Choose, Generator, Row
from agents.common.qwen2_5_vl.image import Grid
from agents.common.qwen2_5_vl.language import expand
from agents.common.qwen2_5_vl.network import QwenNetwork
from agents.common.upload import upload


class Question(Protocol):
    """A request for an answer: ids with a placeholder per image."""

    @property
    def slot(self) -> int: ...

    @property
    def input_ids(self) -> list[int]: ...


Q = TypeVar("Q", bound=Question)


class Decoder(Generator, Generic[Q]):
    """Answers questions, each of which stands alone, as `Generator` does requests.

    The repetition penalty sees the question, too, image placeholders included, as published.
    """

    guesses = False

    def __init__(
        self,
        model: QwenNetwork,
        settings: GenerationSettings,
        max_new_tokens: int,
        max_batch: int,
        choose: Choose | None,
        graphs: bool = False,
    ) -> None:
        super().__init__(
            model,
            settings,
            max_new_tokens=max_new_tokens,
            max_batch=max_batch,
            choose=choose,
            graphs=model.attention if graphs else None,
        )

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
        return self._answer(lambda i: self._row(questions[i]), len(questions))

    def _row(self, question: Q) -> Row:
        ids, positions = expand(question.input_ids, self.grids(question), self.model.config.image_token)
        return row_of(question, ids, positions)

    def _look(self, rows: Sequence[Row]) -> list[Tensor]:
        return [self.fused(row.turn) for row in rows]

    def _read(
        self, rows: Sequence[Row], ids: Tensor, features: Tensor, view: CacheView, mask: Tensor | None
    ) -> Tensor:
        return read(self.model, rows, ids, features, view, mask)

    def _logits(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.model.logits(hidden)
        return scores

    def _captured(self, ids: Tensor, positions: Tensor, into: CacheColumns) -> Tensor:
        blocks = self.model.model
        return self._logits(blocks(blocks.embed_tokens(ids), positions.expand(3, -1, -1), into)).float()


def row_of(turn: Any, ids: Tensor, positions: Tensor) -> Row:
    """A question with its expanded ids (length,) and their positions (3, length); see `expand`."""
    behind = int(positions.max()) + 1 - len(ids)
    return Row(turn, 0, ids, positions=positions, offset=behind, penalized=frozenset(ids.tolist()))


def read(
    model: QwenNetwork, rows: Sequence[Row], ids: Tensor, features: Tensor, view: CacheView, mask: Tensor | None
) -> Tensor:
    """Hidden states (rows, length, hidden) of what rows feed: questions, or the tokens behind them; see
    `Generator`."""
    if view.length == 0:  # padding is on the right, where causal attention never looks
        parts = [row.positions.T for row in rows if row.positions is not None]
        positions = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True).permute(2, 0, 1)
        embeddings = model.embed(ids, features)
    else:
        places = torch.tensor([row.length + row.offset for row in rows])[:, None] + torch.arange(ids.shape[1])
        positions = places.expand(3, -1, -1)
        embeddings = model.model.embed_tokens(upload(ids, model.device))
        view = view if mask is None else replace(view, seen=mask[:, None, None])
    hidden: Tensor = model.model(embeddings, upload(positions, model.device), view)
    return hidden


def reading(model: QwenNetwork, questions: Sequence[tuple[Tensor, Tensor]], fused: Tensor) -> Tensor:
    """Scores (rows, vocabulary), float32, of the first token of answers: what a decoder does, for plans.

    questions: expanded ids and positions. fused: embeddings of all their images.
    """
    rows = [row_of(None, *each) for each in questions]
    longest = max(len(row.ids) for row in rows)
    cache = TurnCache(model.config, len(rows), longest, fused)
    view, mask = cache.open(range(len(rows)), [len(row.ids) for row in rows])
    ids = torch.nn.utils.rnn.pad_sequence([row.ids for row in rows], batch_first=True)
    hidden = read(model, rows, ids, fused, view, mask)
    return model.logits(hidden[torch.arange(len(rows)), torch.tensor([len(row.ids) - 1 for row in rows])]).float()
