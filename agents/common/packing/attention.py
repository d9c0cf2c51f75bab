"""Attention on a CPU, forward and backward: causal over windows that lie one after the other without padding, and
of all tokens of an image.

In bfloat16 PyTorch's forward pass is faster than in float32; its backward pass is up to five times slower, and is
computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

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
        seen = aten._scaled_dot_product_flash_attention_for_cpu(queries, keys, values, 0.0, False)
        ctx.save_for_backward(queries, keys, values, *seen)
        mixed: Tensor = seen[0]
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        *taken, mixed, scale = ctx.saved_tensors
        return _back(gradient, taken, Seen(mixed, scale), causal=False)


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


def _back(gradient: Tensor, taken: Sequence[Tensor], seen: Seen, *, causal: bool) -> tuple[Tensor, ...]:
    """Gradients of queries, keys and values, `taken`."""
    given = (each.float() for each in (gradient, *taken, seen.mixed))
    found = aten._scaled_dot_product_flash_attention_for_cpu_backward(*given, seen.scale, 0.0, causal)
    return tuple(each.to(gradient.dtype) for each in found)


def _by_window(tensors: Sequence[Tensor], lengths: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Each window's part as (1, heads, tokens, width)."""
    cut = [torch.split(tensor, list(lengths)) for tensor in tensors]
    return [tuple(each.transpose(0, 1)[None] for each in window) for window in zip(*cut, strict=True)]


def _by_token(heads: Tensor) -> Tensor:
    return heads[0].transpose(0, 1)
