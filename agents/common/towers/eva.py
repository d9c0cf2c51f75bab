"""EVA-CLIP's ViT-g as BLIP-2 publishes it (eva_vit_g.pth), and frames as it takes them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from agents.common.towers.siglip import VisionGeometry

VIT_G = VisionGeometry(1408, 6144, 40, 16, 224, 14, hidden_act="gelu")
"""Sizes of the published file, whose last block is not used."""

_MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
_STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
_LEVELS = (((np.arange(256) * (1 / 255)).astype(np.float32)[:, None] - _MEAN) / _STD).T
"""Network input for each channel and 8-bit value, rounded as CLIP's image processor does."""


def crop(frame: NDArray[np.uint8] | Image.Image, size: int) -> NDArray[np.uint8]:
    """An RGB frame as uint8 (size, size, 3): the shorter side resized, bicubic, then the middle of the longer."""
    image = (frame if isinstance(frame, Image.Image) else Image.fromarray(frame)).convert("RGB")
    width, height = image.size
    short = min(width, height)
    width, height = int(size * width / short), int(size * height / short)
    left, top = (width - size) // 2, (height - size) // 2
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(resized.crop((left, top, left + size, top + size)))


def squared(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A picture in the middle of a square, on the mean color, as LLaVA's `pad` has it."""
    height, width = frame.shape[:2]
    side = max(height, width)
    found = np.full((side, side, 3), (_MEAN * 255).astype(np.uint8), np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    found[top : top + height, left : left + width] = frame
    return found


def network_input(frames: Sequence[NDArray[np.uint8]]) -> Tensor:
    """Cropped frames as one float32 tensor (len(frames), 3, size, size)."""
    planes = np.stack(frames).transpose(0, 3, 1, 2)
    return torch.from_numpy(np.stack([_LEVELS[each][planes[:, each]] for each in range(3)], axis=1))


class _Attention(nn.Module):
    def __init__(self, config: VisionGeometry) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        images, tokens, width = states.shape
        bias = torch.cat([self.q_bias, torch.zeros_like(self.v_bias), self.v_bias])  # keys have none
        joined = functional.linear(states, self.qkv.weight, bias).view(images, tokens, 3, self.heads, -1)
        queries, keys, values = joined.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values)
        found: Tensor = self.proj(mixed.transpose(1, 2).reshape(images, tokens, width))
        return found


class _Block(nn.Module):
    def __init__(self, config: VisionGeometry) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.norm1 = nn.LayerNorm(width, config.layer_norm_eps)
        self.attn = _Attention(config)
        self.norm2 = nn.LayerNorm(width, config.layer_norm_eps)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, inner), "fc2": nn.Linear(inner, width)})

    def forward(self, states: Tensor) -> Tensor:
        states = states + self.attn(self.norm1(states))
        inner = functional.gelu(self.mlp["fc1"](self.norm2(states)))
        found: Tensor = states + self.mlp["fc2"](inner)
        return found


class EvaTower(nn.Module):
    """All blocks but the published last one, without the last norm and head; names are those of the file."""

    def __init__(self, config: VisionGeometry) -> None:
        super().__init__()
        width = config.hidden_size
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, config.grid**2 + 1, width) * 0.02)
        patch = config.patch_size
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, patch, patch)})
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.num_hidden_layers - 1))
        self.recompute = False

    def forward(self, pixels: Tensor) -> Tensor:
        """Features (N, 1 + patches, width) of images (N, 3, S, S), the class token's first."""
        patches = self.patch_embed["proj"](pixels).flatten(2).transpose(1, 2)
        states = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1) + self.pos_embed
        for block in self.blocks:
            again = self.recompute and self.training and torch.is_grad_enabled()
            states = checkpoint(block, states, use_reentrant=False) if again else block(states)
        return states


def is_surplus(name: str, config: VisionGeometry) -> bool:
    """Whether a tensor of the published file takes no part: the last block, the last norm and the head."""
    block = re.match(r"blocks\.(\d+)\.", name)
    unused = block is not None and int(block[1]) >= config.num_hidden_layers - 1
    return unused or name.startswith(("norm.", "fc_norm.", "head."))


def pooled(features: Tensor, side: int) -> Tensor:
    """Patch features (N, side ** 2, width), averaged in equal squares, of a tower's (N, 1 + patches, width)."""
    patches = features[:, 1:]
    grid = round(patches.shape[1] ** 0.5)
    planes = patches.transpose(1, 2).reshape(len(patches), -1, grid, grid)
    kernel = grid // side
    return functional.avg_pool2d(planes, kernel, kernel).flatten(2).transpose(1, 2)
