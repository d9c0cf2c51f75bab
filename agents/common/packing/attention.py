"""Causal attention over windows that lie one after the other without padding, forward and backward, on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

aten = torch.ops.aten


class Seen(NamedTuple):
    """What a window's queries took from its values (tokens, heads, width), and what the backward pass needs."""

    mixed: Tensor
    scale: Tensor


def attend(queries: Tensor, keys: Tensor, values: Tensor, lengths: Sequence[int]) -> list[Seen]:
    """What every token of every window takes from the tokens up to it.

    All are (tokens of all windows, heads, width); `lengths` are the windows' tokens.
    """
    seen = []
    for one in _by_window((queries, keys, values), lengths):
        mixed, scale = aten._scaled_dot_product_flash_attention_for_cpu(*one, 0.0, True)
        seen.append(Seen(mixed, scale))
    return seen


def attend_back(
    gradient: Tensor, queries: Tensor, keys: Tensor, values: Tensor, seen: Sequence[Seen], lengths: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values by that of `joined(seen)`."""
    found: list[tuple[Tensor, ...]] = []
    for each, (given, *one) in zip(seen, _by_window((gradient, queries, keys, values), lengths), strict=True):
        found.append(aten._scaled_dot_product_flash_attention_for_cpu_backward(given, *one, *each, 0.0, True))
    of_queries, of_keys, of_values = (
        torch.cat([_by_token(each) for each in of]) for of in zip(*found, strict=True)
    )
    return of_queries, of_keys, of_values


def joined(seen: Sequence[Seen]) -> Tensor:
    """What `attend` found as (tokens of all windows, heads, width)."""
    return torch.cat([_by_token(each.mixed) for each in seen])


def _by_window(tensors: Sequence[Tensor], lengths: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Each window's part as (1, heads, tokens, width)."""
    cut = [torch.split(tensor, list(lengths)) for tensor in tensors]
    return [tuple(each.transpose(0, 1)[None] for each in window) for window in zip(*cut, strict=True)]


def _by_token(heads: Tensor) -> Tensor:
    return heads[0].transpose(0, 1)
