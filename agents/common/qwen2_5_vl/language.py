"""Qwen2.5-VL's language model (arXiv 2502.13923): a decoder whose positions have a time, a row and a column.

Names are those of transformers' module. Positions are computed here, so they do not depend on its version.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from agents.common.decoders.cache import CacheColumns, CacheView
from agents.common.qwen2_5_vl.config import QwenConfig
from agents.common.qwen2_5_vl.image import Grid
from agents.common.qwen2_5_vl.layers import GatedMLP, RMSNorm, angles, rotate


def expand(ids: Sequence[int], grids: Sequence[Grid], image_token: int) -> tuple[Tensor, Tensor]:
    """Ids with every image's token repeated once per embedding, (length,), and their positions, (3, length).

    `grids` are the embeddings of each image in order. Text counts up on all three axes; an image stays at one time
    and spans rows and columns from there; what follows begins behind the largest of them.

    Raises ValueError where placeholders and images do not match.
    """
    if ids.count(image_token) != len(grids):
        raise ValueError(f"{len(grids)} images for {ids.count(image_token)} image placeholders")
    images = iter(grids)
    repeats: list[int] = []
    positions: list[Tensor] = []
    next_position = 0
    for token in ids:
        grid = next(images) if token == image_token else Grid(1, 1)
        rows, columns = (torch.arange(side) for side in grid)
        row, column = (part.flatten() for part in torch.meshgrid(rows, columns, indexing="ij"))
        positions.append(torch.stack((torch.zeros_like(row), row, column)) + next_position)
        repeats.append(grid.cells)
        next_position += max(grid)
    return torch.tensor(ids).repeat_interleave(torch.tensor(repeats)), torch.cat(positions, dim=1)


Past = CacheView | CacheColumns
"""What came before, to which a layer adds what is new; queries attend to what is `seen` of it."""


class LanguageAttention(nn.Module):
    """Grouped-query attention with rotary positions on three axes."""

    def __init__(self, config: QwenConfig, layer: int, eager: bool) -> None:
        super().__init__()
        self.layer, self.eager, self.head_dim = layer, eager, config.head_dim
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries)
        self.k_proj = nn.Linear(config.hidden_size, keys)
        self.v_proj = nn.Linear(config.hidden_size, keys)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], past: Past | None) -> Tensor:
        q, k, v = (
            project(x).unflatten(2, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, *turns), rotate(k, *turns)
        mask = None
        if past is not None:
            k, v = past.put(self.layer, k, v)
            mask = past.seen
        groups = q.shape[1] // k.shape[1]
        k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
        mixed = attend(q, k, v, mask, self.eager)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, eager: bool) -> Tensor:
    """Attention (rows, heads, queries, head); where there is no mask, queries are the last of the keys: all there
    are, or a single one."""
    queries, keys = q.shape[2], k.shape[2]
    if not eager:
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None and queries > 1
        )
    seen = mask
    if seen is None:
        seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    scores = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    weights: Tensor = scores.softmax(-1, dtype=torch.float32).to(v.dtype)
    return weights @ v


class Embeddings(nn.Embedding):
    """Embeddings of ids and, where the output layer is tied to them, scores of hidden states.

    Both are calls of this module: ZeRO 3 has a weight whole only while its own module runs.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            return functional.linear(x, self.weight)
        return super().forward(x)


class LanguageLayer(nn.Module):
    """One block: attention and gated MLP, each after a norm and added to what came in."""

    def __init__(self, config: QwenConfig, layer: int, eager: bool) -> None:
        super().__init__()
        self.self_attn = LanguageAttention(config, layer, eager)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, bias=False)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], past: Past | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turns, past)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class LanguageModel(nn.Module):
    """Embeddings to hidden states. `eager` computes attention without a fused kernel."""

    def __init__(self, config: QwenConfig, eager: bool = False) -> None:
        super().__init__()
        self.config, self.eager = config, eager
        self.embed_tokens = Embeddings(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LanguageLayer(config, i, eager) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.checkpointing = False

    def forward(self, x: Tensor, positions: Tensor, past: Past | None = None) -> Tensor:
        """Hidden states (rows, length, hidden) of embeddings x at `positions` (3, rows, length).

        Without `past`, and where that is empty, tokens see those before them in their row, so padding has to be on
        the right. Where `past` holds something, they see what it says, or a single new token per row all of it.
        """
        turns = self._turns(positions, x.dtype)
        for layer in self.layers:
            if self.checkpointing and self.training and torch.is_grad_enabled():
                x = checkpoint(layer, x, turns, past, use_reentrant=False)
            else:
                x = layer(x, turns, past)
        out: Tensor = self.norm(x)
        return out

    def _turns(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine (rows, 1, length, head); the frequencies are shared out among the three axes."""
        found = angles(positions, self.config.head_dim, self.config.rope_theta)
        parts = torch.split(found, list(self.config.rope_sections), dim=-1)
        mixed = torch.cat([part[axis] for axis, part in enumerate(parts)], dim=-1).repeat(1, 1, 2)[:, None]
        return mixed.cos().to(dtype), mixed.sin().to(dtype)
