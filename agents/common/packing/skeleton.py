"""The parameters of the network without transformers, for `fast`, which needs no more of them than their names.

Importing transformers' models takes longer than importing torch, and a small network acts within milliseconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agents.common.decoders.sizes import WindowedSizes
from agents.common.towers.siglip import VisionGeometry


class Skeleton(nn.Module):
    """The language model's blocks with the vision parts as children: names and shapes of `backbone.Backbone`."""

    def __init__(self, config: WindowedSizes) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = _table(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        add_vision(self, config, _tower(config.vision))

    def rotary_emb(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines (..., head dim) of positions, in the dtype of `like`."""
        width = self.config.head_dim
        steps = torch.arange(0, width, 2, dtype=torch.float, device=like.device)
        frequencies = 1.0 / (self.config.rope_theta ** (steps / width))
        angles = positions[..., None].float() * frequencies
        both = torch.cat([angles, angles], -1)
        return both.cos().to(like.dtype), both.sin().to(like.dtype)

    def fill_buffers(self, device: torch.device | str, patches: int) -> None:
        """Nothing: there are no tables."""


def add_vision(backbone: nn.Module, config: WindowedSizes, tower: nn.Module) -> None:
    """Put projector and vision tower where published checkpoints have them."""
    backbone.mm_projector = nn.Sequential(
        nn.Linear(config.vision.hidden_size, config.hidden_size),
        nn.GELU(),
        nn.Linear(config.hidden_size, config.hidden_size),
    )
    backbone.vision_tower = nn.ModuleDict({"vision_tower": nn.ModuleDict({"vision_model": tower})})


def _block(config: WindowedSizes) -> nn.Module:
    hidden, inner, shared = (
        config.hidden_size,
        config.intermediate_size,
        config.num_key_value_heads * config.head_dim,
    )
    sizes = {"q_proj": hidden, "k_proj": shared, "v_proj": shared}
    inputs = {name: nn.Linear(hidden, size) for name, size in sizes.items()}
    return _Named(
        self_attn=_Named(**inputs, o_proj=nn.Linear(hidden, hidden, bias=False)),
        mlp=_Named(
            gate_proj=nn.Linear(hidden, inner, bias=False),
            up_proj=nn.Linear(hidden, inner, bias=False),
            down_proj=nn.Linear(inner, hidden, bias=False),
        ),
        input_layernorm=nn.RMSNorm(hidden, config.rms_norm_eps),
        post_attention_layernorm=nn.RMSNorm(hidden, config.rms_norm_eps),
    )


def _tower(vision: VisionGeometry) -> nn.Module:
    """SigLIP's tower without its last block, which is not used."""
    width, inner = vision.hidden_size, vision.intermediate_size
    products = ("q_proj", "k_proj", "v_proj", "out_proj")
    blocks = [
        _Named(
            self_attn=_Named(**{name: nn.Linear(width, width) for name in products}),
            layer_norm1=nn.LayerNorm(width, vision.layer_norm_eps),
            mlp=_Named(fc1=nn.Linear(width, inner), fc2=nn.Linear(inner, width)),
            layer_norm2=nn.LayerNorm(width, vision.layer_norm_eps),
        )
        for _ in range(vision.num_hidden_layers - 1)
    ]
    return _Named(
        embeddings=_Patches(vision),
        encoder=_Named(layers=nn.ModuleList(blocks)),
        post_layernorm=nn.LayerNorm(width, vision.layer_norm_eps),
    )


def _table(rows: int, width: int) -> nn.Embedding:
    """An embedding whose values are still to come: to draw some on the meta device, torch imports its compiler."""
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


class _Named(nn.Module):
    """Modules by name."""

    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


class _Patches(nn.Module):
    """Embeddings (N, patches, width) of images (N, 3, S, S)."""

    def __init__(self, vision: VisionGeometry) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, vision.hidden_size, vision.patch_size, vision.patch_size)
        self.position_embedding = _table(vision.grid**2, vision.hidden_size)

    def forward(self, pixels: Tensor) -> Tensor:
        found: Tensor = self.patch_embedding(pixels).flatten(2).transpose(1, 2) + self.position_embedding.weight
        return found
