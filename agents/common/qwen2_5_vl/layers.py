"""Pieces that several parts of the network are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """Root mean square norm over the last dimension, computed in float32 (arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class GatedMLP(nn.Module):
    """SwiGLU (arXiv 2002.05202)."""

    def __init__(self, width: int, hidden: int, bias: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=bias)
        self.up_proj = nn.Linear(width, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class PatchMerger(nn.Module):
    """Four neighboring patches of `width` become one embedding of `out`."""

    def __init__(self, width: int, hidden: int, out: int) -> None:
        super().__init__()
        self.ln_q = RMSNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(4 * width, hidden), nn.GELU(), nn.Linear(hidden, out))

    def forward(self, patches: Tensor) -> Tensor:
        """(N, 4 * embeddings, width), each embedding's patches one after the other -> (N, embeddings, out)."""
        normed = self.ln_q(patches)
        out: Tensor = self.mlp(normed.unflatten(1, (-1, 4)).flatten(2))
        return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (arXiv 2104.09864) of x (..., width): pairs are (i, i + width / 2)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def angles(positions: Tensor, width: int, theta: float) -> Tensor:
    """Angles (..., width / 2), float32, of the rotary frequencies of `width` dimensions at integer positions."""
    steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    return positions[..., None].float() * (1.0 / theta ** (steps / width))
