"""A block of the language model for training small networks on a CPU: forward and backward written out.

transformers' block is some fifty small operations on a padded batch, each of which autograd records, and a network
of a few million parameters spends more time on them than on its products. Here windows lie one after the other
without padding, a norm's weights are multiplied into the weights behind it, and the last block computes only the
rows that a label looks at. The result is the same up to rounding. Under autocast products, attention and what lies
between them are in its dtype, the sums that run through the network in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from agents.common.packing.attention import attend, attend_back, joined

aten = torch.ops.aten


@dataclass(frozen=True)
class Shape:
    """What all blocks share: kv heads, queries that share one of them, head width, and the norms' epsilon."""

    shared: int
    groups: int
    width: int
    eps: float


@dataclass(frozen=True)
class Work:
    """What a block works on: windows of `lengths` tokens, one after the other.

    cos, sin: rotary tables (tokens, 1, width / 2) in the dtype of products. chosen: the rows it goes on with after
    its attention, None for all.
    """

    shape: Shape
    lengths: tuple[int, ...]
    cos: Tensor
    sin: Tensor
    chosen: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """What matrices are multiplied in."""
        return self.cos.dtype


def weights_of(layer: Any) -> tuple[nn.Parameter, ...]:
    """The parameters of a block of transformers' Qwen2 in the order in which `Block` takes them."""
    attention, mlp = layer.self_attn, layer.mlp
    return (
        layer.input_layernorm.weight,
        attention.q_proj.weight,
        attention.q_proj.bias,
        attention.k_proj.weight,
        attention.k_proj.bias,
        attention.v_proj.weight,
        attention.v_proj.bias,
        attention.o_proj.weight,
        layer.post_attention_layernorm.weight,
        mlp.gate_proj.weight,
        mlp.up_proj.weight,
        mlp.down_proj.weight,
    )


class Block(torch.autograd.Function):
    """States (tokens, hidden) to states (rows, hidden): `Block.apply(states, work, *weights_of(layer))`."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, work: Work, *weights: Tensor) -> Tensor:
        norm, q, q_bias, k, k_bias, v, v_bias, out, mlp_norm, gate, up, down = weights
        shape, chosen, low = work.shape, work.chosen, work.dtype
        normed, spread = _normalized(state, shape.eps, low)
        qkv = (torch.cat([q, k, v]) * norm).to(low)
        heads = torch.addmm(torch.cat([q_bias, k_bias, v_bias]).to(low), normed, qkv.T)
        heads = heads.view(len(state), -1, shape.width)
        split = [shape.shared * shape.groups, shape.shared, shape.shared]
        queries, keys, values = torch.split(heads, split, 1)
        queries, keys = _turned(queries, work.cos, work.sin), _turned(keys, work.cos, work.sin)
        keys, values = keys.repeat_interleave(shape.groups, 1), values.repeat_interleave(shape.groups, 1)
        seen = attend(queries, keys, values, work.lengths)
        taken = joined(seen).flatten(1)
        taken, before = (taken, state) if chosen is None else (taken[chosen], state[chosen])
        middle = _sum(before, taken, out.to(low).T)
        mlp_normed, mlp_spread = _normalized(middle, shape.eps, low)
        gated, lifted = (mlp_normed @ (weight * mlp_norm).to(low).T for weight in (gate, up))
        opened = aten.silu(gated)
        product = opened * lifted
        ctx.work, ctx.seen = work, seen
        ctx.save_for_backward(
            *weights, normed, spread, queries, keys, values, taken, mlp_normed, mlp_spread, gated, lifted, opened
        )
        return _sum(middle, product, down.to(low).T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        weights, (normed, spread, queries, keys, values, taken), mlp_saved = saved[:12], saved[12:18], saved[18:]
        norm, q, _, k, _, v, _, out = weights[:8]
        work: Work = ctx.work
        shape, chosen, low = work.shape, work.chosen, work.dtype
        wanted = any(ctx.needs_input_grad[2:])
        of_middle, mlp_grads = _mlp_back(gradient, weights[8:], mlp_saved, wanted)
        of_output = of_middle.to(low)
        of_mixed = _spread(of_output @ out.to(low), chosen, len(normed)).view_as(queries)
        of_queries, of_keys, of_values = attend_back(of_mixed, queries, keys, values, ctx.seen, work.lengths)
        ctx.seen = None
        of_keys, of_values = (
            each.view(len(each), shape.shared, shape.groups, -1).sum(2) for each in (of_keys, of_values)
        )
        of_queries, of_keys = _turned(of_queries, work.cos, -work.sin), _turned(of_keys, work.cos, -work.sin)
        of_heads = torch.cat([of_queries, of_keys, of_values], 1).flatten(1)
        qkv = torch.cat([q, k, v])
        of_state = _normalized_back(of_heads @ (qkv * norm).to(low), normed, spread)
        of_state = of_state.add_(of_middle) if chosen is None else of_state.index_add_(0, chosen, of_middle)
        if not wanted:
            return (of_state, None, *[None] * 12)
        qkv_grad, of_norm = _folded(of_heads, normed, qkv, norm)
        rows = [len(q), len(k), len(v)]
        q_grad, k_grad, v_grad = torch.split(qkv_grad, rows)
        q_bias, k_bias, v_bias = torch.split(of_heads.sum(0, dtype=norm.dtype), rows)
        out_grad = (of_output.T @ taken).to(norm.dtype)
        return (of_state, None, of_norm, q_grad, q_bias, k_grad, k_bias, v_grad, v_bias, out_grad, *mlp_grads)


def _mlp_back(
    gradient: Tensor, weights: tuple[Tensor, ...], saved: tuple[Tensor, ...], wanted: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Gradients of what came into a block's second half, and of its weights (norm, gate, up, down) if `wanted`."""
    norm, gate, up, down = weights
    normed, spread, gated, lifted, opened = saved
    low = normed.dtype
    of_output = gradient.to(low)
    of_product = of_output @ down.to(low)
    of_lifted = of_product * opened
    down_grad = (of_output.T @ (opened * lifted)).to(norm.dtype) if wanted else None
    of_gated = aten.silu_backward(of_product.mul_(lifted), gated)
    of_normed = torch.addmm(of_gated @ (gate * norm).to(low), of_lifted, (up * norm).to(low))
    of_middle = _normalized_back(of_normed, normed, spread).add_(gradient)
    if not wanted:
        return of_middle, (None,) * 4
    gate_grad, gate_norm = _folded(of_gated, normed, gate, norm)
    up_grad, up_norm = _folded(of_lifted, normed, up, norm)
    return of_middle, (gate_norm + up_norm, gate_grad, up_grad, down_grad)


def _sum(base: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """`base` and a product, which may be of a lower precision."""
    return torch.addmm(base, one, other) if one.dtype == base.dtype else (one @ other) + base


def _folded(gradient: Tensor, normed: Tensor, weight: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a weight and of the norm's weights that were multiplied into its columns."""
    product = (gradient.T @ normed).to(norm.dtype)
    return product * norm, (product * weight).sum(0)


def _normalized(state: Tensor, eps: float, low: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows with root mean square 1, in the dtype of products, and what they were multiplied with (rows, 1)."""
    spread = state.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (state * spread).to(low), spread


def _normalized_back(gradient: Tensor, normed: Tensor, spread: Tensor) -> Tensor:
    gradient, normed = gradient.to(spread.dtype), normed.to(spread.dtype)
    along = (gradient * normed).mean(-1, keepdim=True)
    return torch.addcmul(gradient, normed, along, value=-1).mul_(spread)


def _spread(rows: Tensor, chosen: Tensor | None, tokens: int) -> Tensor:
    """The chosen rows among all, with zeros between them."""
    return rows if chosen is None else rows.new_zeros(tokens, rows.shape[1]).index_copy_(0, chosen, rows)


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads (rows, heads, width) rotated by their position."""
    first, second = heads.chunk(2, -1)
    turned = torch.empty_like(heads, memory_format=torch.contiguous_format)
    one, other = turned.chunk(2, -1)
    torch.mul(first, cos, out=one).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=other).addcmul_(first, sin)
    return turned
