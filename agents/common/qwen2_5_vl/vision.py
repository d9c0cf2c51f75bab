"""Qwen2.5-VL's vision tower (arXiv 2502.13923): most of its blocks attend inside windows.

Tokens stay in the order of the input; a window is a set of indices. Names are those of transformers' module.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from agents.common.qwen2_5_vl.config import BLOCK, MERGE, PATCH, VisionSizes
from agents.common.qwen2_5_vl.image import Grid
from agents.common.qwen2_5_vl.layers import GatedMLP, PatchMerger, RMSNorm, angles, rotate

THETA = 10000.0


class PatchProjection(nn.Conv3d):
    """A linear map of flattened patches, whose weight is kept as that of a convolution."""

    def forward(self, patches: Tensor) -> Tensor:
        return functional.linear(patches.to(self.weight.dtype), self.weight.flatten(1))


class PatchEmbedding(nn.Module):
    """The first layer of the tower, under its name in checkpoints."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = PatchProjection(3, width, (2, PATCH, PATCH), stride=(2, PATCH, PATCH), bias=False)

    def forward(self, patches: Tensor) -> Tensor:
        out: Tensor = self.proj(patches)
        return out


class VisionAttention(nn.Module):
    """Self-attention inside groups of tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], windows: Sequence[Tensor]) -> Tensor:
        """x: (N, tokens, width). `windows`: index tensors (count, size), which hold every token once."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = (rotate(part.float(), *turns).to(v.dtype) for part in (q, k))
        mixed = []
        for index in windows:
            # (N, heads, tokens, head) -> (N * windows, heads, size, head); fused kernels want four dimensions
            inside = [part[:, :, index].transpose(1, 2).flatten(0, 1) for part in (q, k, v)]
            found = functional.scaled_dot_product_attention(inside[0], inside[1], inside[2])
            mixed.append(found.transpose(1, 2).reshape(len(x), index.numel(), -1))
        order = torch.cat([index.flatten() for index in windows])
        out: Tensor = self.proj(torch.cat(mixed, dim=1)[:, order.argsort()])
        return out


class VisionBlock(nn.Module):
    """One block of the tower: attention and gated MLP, each after a norm and added to what came in."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.norm1 = RMSNorm(sizes.width, eps=1e-6)
        self.norm2 = RMSNorm(sizes.width, eps=1e-6)
        self.attn = VisionAttention(sizes.width, sizes.heads)
        self.mlp = GatedMLP(sizes.width, sizes.intermediate_size, bias=True)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], windows: Sequence[Tensor]) -> Tensor:
        x = x + self.attn(self.norm1(x), turns, windows)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class VisionTower(nn.Module):
    """Patches to features, and with `merger` to embeddings of the language model."""

    def __init__(self, sizes: VisionSizes, hidden: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.patch_embed = PatchEmbedding(sizes.width)
        self.blocks = nn.ModuleList(VisionBlock(sizes) for _ in range(sizes.depth))
        self.merger = PatchMerger(sizes.width, 4 * sizes.width, hidden)
        self.checkpointing = False

    def features(self, patches: Tensor, grid: Grid) -> Tensor:
        """What the last block says of images (N, patches, 1176) of one size: (N, patches, width)."""
        x: Tensor = self.patch_embed(patches)
        found = angles(patch_positions(grid, x.device), self.sizes.width // self.sizes.heads // 2, THETA)
        found = found.flatten(1).repeat(1, 2)
        turns = (found.cos(), found.sin())
        whole = [torch.arange(patches.shape[1], device=x.device)[None]]
        windows = windows_of(grid, self.sizes.window // BLOCK, x.device)
        for i, block in enumerate(self.blocks):
            seen = whole if i in self.sizes.full_attention else windows
            if self.checkpointing and self.training and torch.is_grad_enabled():
                x = checkpoint(block, x, turns, seen, use_reentrant=False)
            else:
                x = block(x, turns, seen)
        return x


def patch_positions(grid: Grid, device: torch.device) -> Tensor:
    """Row and column (patches, 2) of every patch, the patches of an embedding one after the other."""
    rows, columns = (torch.arange(MERGE * side, device=device) for side in grid)
    both = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1)
    both = both.reshape(grid.rows, MERGE, grid.columns, MERGE, 2)
    return both.transpose(1, 2).reshape(-1, 2)


def windows_of(grid: Grid, side: int, device: torch.device) -> list[Tensor]:
    """Patch indices of all windows, `side` embeddings wide and high from the top left; a tensor per size."""
    tokens = torch.arange(grid.cells * MERGE**2, device=device).reshape(*grid, MERGE**2)
    groups: dict[int, list[Tensor]] = {}
    for top in range(0, grid.rows, side):
        for left in range(0, grid.columns, side):
            window = tokens[top : top + side, left : left + side].flatten()
            groups.setdefault(len(window), []).append(window)
    return [torch.stack(windows) for windows in groups.values()]
