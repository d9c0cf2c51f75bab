"""Attention on a CPU, forward and backward: causal over windows that lie one after the other without padding, and
of all tokens of an image.

PyTorch's backward pass is up to nine times slower in bfloat16 than in float32. In bfloat16 the shares that tokens
take of each other are therefore kept, though memory grows with the square of a window, and all is matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

aten = torch.ops.aten


class Seen(NamedTuple):
    """What a window's queries took from its values (tokens, heads, width), and what the backward pass needs: the
    logarithms of the sums of shares, in bfloat16 the shares themselves."""

    mixed: Tensor
    kept: Tensor


def attend(queries: Tensor, keys: Tensor, values: Tensor, lengths: Sequence[int]) -> list[Seen]:
    """What every token of every window takes from the tokens up to it.

    All are (tokens of all windows, heads, width); `lengths` are the windows' tokens.
    """
    return [_taken(*one, causal=True) for one in _by_window((queries, keys, values), lengths)]


def attend_back(
    gradient: Tensor, queries: Tensor, keys: Tensor, values: Tensor, seen: Sequence[Seen], lengths: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values by that of `joined(seen)`."""
    found: list[tuple[Tensor, ...]] = []
    for each, (given, *one) in zip(seen, _by_window((gradient, queries, keys, values), lengths), strict=True):
        found.append(_back(given, one, each, causal=True))
    of_queries, of_keys, of_values = (
        torch.cat([_by_token(each) for each in of]) for of in zip(*found, strict=True)
    )
    return of_queries, of_keys, of_values


def joined(seen: Sequence[Seen]) -> Tensor:
    """What `attend` found as (tokens of all windows, heads, width)."""
    return torch.cat([_by_token(each.mixed) for each in seen])


class Attention(torch.autograd.Function):
    """What every token takes from all: queries, keys and values are (images, heads, tokens, width)."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        seen = _taken(queries, keys, values, causal=False)
        ctx.save_for_backward(queries, keys, values, *seen)
        return seen.mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        *taken, mixed, kept = ctx.saved_tensors
        return _back(gradient, taken, Seen(mixed, kept), causal=False)


class ImageAttention(nn.Module):
    """SigLIP's attention with queries, keys and values in one product; parameters keep their names."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = attention.q_proj, attention.k_proj, attention.v_proj
        self.out_proj, self._heads = attention.out_proj, attention.num_heads

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        """(images, tokens, hidden) to the same, and no weights."""
        parts = (self.q_proj, self.k_proj, self.v_proj)
        weight, bias = (torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "bias"))
        images, tokens, _hidden = hidden_states.shape
        heads = functional.linear(hidden_states, weight, bias).view(images, tokens, 3, self._heads, -1)
        mixed = Attention.apply(*heads.permute(2, 0, 3, 1, 4))  # type: ignore[no-untyped-call]
        return self.out_proj(mixed.transpose(1, 2).reshape(images, tokens, -1)), None


def _taken(queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool) -> Seen:
    """All are (images or 1, heads, tokens, width)."""
    if queries.dtype == torch.float32:
        mixed, scale = aten._scaled_dot_product_flash_attention_for_cpu(queries, keys, values, 0.0, causal)
        return Seen(mixed, scale)
    asking, asked, given = _flat(queries, keys, values)
    hidden = _later(asking.shape[1], queries.dtype) if causal else queries.new_zeros(())
    shares = torch.softmax(torch.baddbmm(hidden, asking, asked.mT, alpha=_scale(queries)), -1)
    return Seen((shares @ given).view(queries.shape), shares)


def _back(gradient: Tensor, taken: Sequence[Tensor], seen: Seen, *, causal: bool) -> tuple[Tensor, ...]:
    """Gradients of queries, keys and values, `taken`."""
    if gradient.dtype == torch.float32:
        of_mixed = (gradient, *taken, *seen)
        return tuple(aten._scaled_dot_product_flash_attention_for_cpu_backward(*of_mixed, 0.0, causal))
    gradient, queries, keys, values = _flat(gradient, *taken)
    of_scores = torch._softmax_backward_data(gradient @ values.mT, seen.kept, -1, gradient.dtype)
    of_queries = (of_scores @ keys).mul_(_scale(queries))
    of_keys = (of_scores.mT @ queries).mul_(_scale(queries))
    return tuple(each.view(taken[0].shape) for each in (of_queries, of_keys, seen.kept.mT @ gradient))


def _flat(*tensors: Tensor) -> tuple[Tensor, ...]:
    """(images, heads, tokens, width) as (images * heads, tokens, width)."""
    return tuple(each.reshape(-1, *each.shape[2:]) for each in tensors)


def _scale(queries: Tensor) -> float:
    return float(queries.shape[-1] ** -0.5)


@lru_cache(maxsize=64)
def _later(tokens: int, dtype: torch.dtype) -> Tensor:
    """Minus infinity (tokens, tokens) where one stands after the one that looks, else 0."""
    return torch.full((tokens, tokens), -torch.inf, dtype=dtype).triu(1)


def _by_window(tensors: Sequence[Tensor], lengths: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Each window's part as (1, heads, tokens, width)."""
    cut = [torch.split(tensor, list(lengths)) for tensor in tensors]
    return [tuple(each.transpose(0, 1)[None] for each in window) for window in zip(*cut, strict=True)]


def _by_token(heads: Tensor) -> Tensor:
    return heads[0].transpose(0, 1)
