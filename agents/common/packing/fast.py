"""Blocks of both transformers for inference with few operations: what small models on a CPU spend their time on.

transformers' modules are written to be read and extended. A block of them is some fifty small operations and as
many Python calls, which a network of a few million parameters feels and one of billions does not. Here the same
arithmetic takes half as many: queries, keys and values in one product, gate and up projection in one, rotary
tables computed once, and the heads that share keys and values folded into one attention call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from agents.common.checkpoints.quantized import is_quantized
from agents.common.decoders.sizes import WindowedSizes
from agents.common.towers.siglip import used_blocks

FEW_PARAMETERS = 50_000_000
"""Up to here operations cost more than arithmetic on a CPU; beyond it, the joined weights would take memory."""


@dataclass(frozen=True)
class _Block:
    """Weights of one block. `qkv` joins queries, keys and values (rows), `gate_up` gate and up projection.

    qkv_bias: None in Llama, which has none.
    """

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


def fast_enough(model: Any) -> bool:
    """Whether a model runs faster through this module, whose arithmetic is that of SDPA attention in float32.

    Adapters are modules of their own, which it would leave out; weights in few bits are no matrices.
    """
    if any(hasattr(module, "base_layer") or is_quantized(module) for module in model.modules()):
        return False
    count = sum(parameter.numel() for parameter in model.parameters())
    return would_be_fast(count, model.attn, model.device, model.dtype)


def would_be_fast(parameters: int, attn: str, device: torch.device, dtype: torch.dtype) -> bool:
    """The same for a model that there is not yet; parameters: how many it will have."""
    return parameters <= FEW_PARAMETERS and attn == "sdpa" and device.type == "cpu" and dtype == torch.float32


class FastBlocks:
    """The blocks of a `Backbone`, or a `Skeleton` one, with weights as they are now: for inference only."""

    def __init__(self, backbone: Any, config: WindowedSizes) -> None:
        self._blocks = [_block(layer) for layer in backbone.layers]
        self._norm = backbone.norm.weight
        self._eps = float(config.rms_norm_eps)
        self._heads, self._shared = config.num_attention_heads, config.num_key_value_heads
        self._width = config.head_dim
        positions = torch.arange(config.max_position_embeddings, device=self._norm.device)[None]
        cos, sin = backbone.rotary_emb(self._norm, positions)
        # The rotation's first half comes with a minus: x * cos + swapped(x) * sin.
        half = self._width // 2
        self._cos = cos[0]
        self._sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)

    def __call__(self, embeddings: Tensor, positions: Tensor, entries: Tensor, seen: Tensor) -> Tensor:
        """Hidden states (rows, length, hidden) of new tokens.

        embeddings: (rows, length, hidden). positions: (rows, length). entries: (layers, 2, rows, kv heads,
        columns, head dim), whose last `length` columns are filled here. seen: bool (rows, length, columns), which
        columns a token attends to.
        """
        rows, length, hidden = embeddings.shape
        shared, width = self._shared, self._width
        cos, sin = self._cos[positions][:, :, None], self._sin[positions][:, :, None]
        groups = self._heads // shared
        mask = seen[:, None].repeat(1, 1, groups, 1)
        state = embeddings
        for block, cache in zip(self._blocks, entries, strict=True):
            normed = functional.rms_norm(state, (hidden,), block.norm, self._eps)
            joined = functional.linear(normed, block.qkv, block.qkv_bias).view(rows, length, -1, width)
            turned = joined[:, :, : self._heads + shared]
            turned = turned * cos + turned.roll(width // 2, -1) * sin
            cache[0, :, :, -length:] = turned[:, :, self._heads :].transpose(1, 2)
            cache[1, :, :, -length:] = joined[:, :, self._heads + shared :].transpose(1, 2)
            # Heads that share keys stand beside each other: (rows, kv heads, heads of each * length, head dim).
            queries = turned[:, :, : self._heads].transpose(1, 2).reshape(rows, shared, groups * length, width)
            mixed = functional.scaled_dot_product_attention(queries, cache[0], cache[1], attn_mask=mask)
            mixed = mixed.view(rows, self._heads, length, width).transpose(1, 2).reshape(rows, length, -1)
            state = state + functional.linear(mixed, block.out)
            normed = functional.rms_norm(state, (hidden,), block.mlp_norm, self._eps)
            gate, up = functional.linear(normed, block.gate_up).chunk(2, -1)
            state = state + functional.linear(functional.silu(gate) * up, block.down)
        return functional.rms_norm(state, (hidden,), self._norm, self._eps)


@dataclass(frozen=True)
class _TowerBlock:
    """Weights of one block of the vision tower, each a pair of weight and bias; `qkv` joins three products."""

    norm: tuple[Tensor, Tensor]
    qkv: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]
    mlp_norm: tuple[Tensor, Tensor]
    up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]


class FastTower:
    """A SigLIP vision tower with weights as they are now: for inference only."""

    def __init__(self, model: Any) -> None:
        tower = model.tower
        config = model.config.vision
        self._embeddings = tower.get_submodule("embeddings")
        self._blocks = [_tower_block(layer) for layer in used_blocks(tower, config)]
        self._gelu = "tanh" if config.hidden_act == "gelu_pytorch_tanh" else "none"
        self._heads, self._eps = config.num_attention_heads, float(config.layer_norm_eps)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Patch features (N, patches, width) of images (N, 3, S, S)."""
        state: Tensor = self._embeddings(pixels)
        images, patches, width = state.shape
        for block in self._blocks:
            normed = functional.layer_norm(state, (width,), *block.norm, self._eps)
            joined = functional.linear(normed, *block.qkv).view(images, patches, 3, self._heads, -1)
            queries, keys, values = joined.permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(queries, keys, values)
            state = state + functional.linear(mixed.transpose(1, 2).reshape(images, patches, width), *block.out)
            normed = functional.layer_norm(state, (width,), *block.mlp_norm, self._eps)
            inner = functional.gelu(functional.linear(normed, *block.up), approximate=self._gelu)
            state = state + functional.linear(inner, *block.down)
        return state


def _tower_block(layer: Any) -> _TowerBlock:
    attention, mlp = layer.self_attn, layer.mlp
    inputs = (attention.q_proj, attention.k_proj, attention.v_proj)
    return _TowerBlock(
        norm=_pair(layer.layer_norm1),
        qkv=(
            torch.cat([each.weight for each in inputs]).detach(),
            torch.cat([each.bias for each in inputs]).detach(),
        ),
        out=_pair(attention.out_proj),
        mlp_norm=_pair(layer.layer_norm2),
        up=_pair(mlp.fc1),
        down=_pair(mlp.fc2),
    )


def _pair(module: Any) -> tuple[Tensor, Tensor]:
    return module.weight.detach(), module.bias.detach()


def _block(layer: Any) -> _Block:
    attention, mlp = layer.self_attn, layer.mlp
    inputs = (attention.q_proj, attention.k_proj, attention.v_proj)
    return _Block(
        norm=layer.input_layernorm.weight.detach(),
        qkv=torch.cat([each.weight for each in inputs]).detach(),
        qkv_bias=None if inputs[0].bias is None else torch.cat([each.bias for each in inputs]).detach(),
        out=attention.o_proj.weight.detach(),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach(),
        down=mlp.down_proj.weight.detach(),
    )
