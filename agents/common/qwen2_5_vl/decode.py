"""Answers of Qwen2.5-VL's language model to many questions at once, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.batches import groups
from agents.common.qwen2_5_vl.language import KeyValues
from agents.common.qwen2_5_vl.network import QwenNetwork

Row = tuple[Tensor, Tensor]
"""A question's expanded ids and their positions."""

Choose = Callable[[Sequence[Sequence[int]], Tensor, Tensor], list[int]]
"""The next token of every answer: of answers so far, float32 logits (rows, vocabulary), and which tokens a row has
seen, of the same shape."""


def in_batches(rows: Sequence[Row], most: int, answer: Callable[[list[int]], list[list[int]]]) -> list[list[int]]:
    """The answers to `rows`, in their order; those of like length are answered together, at most `most` at once.

    answer: of a batch, by its positions in `rows`.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))
    answers: dict[int, list[int]] = {}
    for start in range(0, len(order), most):
        chunk = order[start : start + most]
        for size in groups([len(rows[i][0]) for i in chunk]):
            batch, chunk = chunk[:size], chunk[size:]
            answers.update(zip(batch, answer(batch), strict=True))
    return [answers[i] for i in range(len(rows))]


def decode(
    model: QwenNetwork,
    rows: Sequence[Row],
    fused: Tensor,
    settings: GenerationSettings,
    longest: int,
    choose: Choose,
) -> list[list[int]]:
    """Answer one batch. fused: embeddings of all its images. An answer ends with an end token, included, or after
    `longest`."""
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
