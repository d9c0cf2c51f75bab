"""VGGT's two dense prediction heads: they lie in JanusVLN checkpoints and are never run."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from agents.janusvln.config import GeometrySizes

HIDDEN = 32
"""Channels of a head's last but one convolution."""


class Stored(nn.Module):
    """Frozen parameters under dotted names, for a file that has to have them."""

    def __init__(self, shapes: Iterator[tuple[str, tuple[int, ...]]]) -> None:
        super().__init__()
        for name, shape in shapes:
            *path, leaf = name.split(".")
            module: nn.Module = self
            for part in path:
                if part not in module._modules:
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            module.register_parameter(leaf, nn.Parameter(torch.zeros(shape), requires_grad=False))


def head_shapes(sizes: GeometrySizes, out: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a dense prediction head (DPT, arXiv 2103.13413) with `out` output channels."""
    width, channels = sizes.head_width, sizes.head_channels

    def convolution(name: str, shape: tuple[int, ...], bias: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", shape
        yield f"{name}.bias", (bias,)

    yield from convolution("norm", (2 * sizes.width,), 2 * sizes.width)
    for i, count in enumerate(channels):
        yield from convolution(f"projects.{i}", (count, 2 * sizes.width, 1, 1), count)
        yield f"scratch.layer{i + 1}_rn.weight", (width, count, 3, 3)
    for i, side in ((0, 4), (1, 2), (3, 3)):
        yield from convolution(f"resize_layers.{i}", (channels[i], channels[i], side, side), channels[i])
    for i in range(1, 5):
        yield from convolution(f"scratch.refinenet{i}.out_conv", (width, width, 1, 1), width)
        for unit in (1, 2) if i < 4 else (2,):
            for number in (1, 2):
                name = f"scratch.refinenet{i}.resConfUnit{unit}.conv{number}"
                yield from convolution(name, (width, width, 3, 3), width)
    yield from convolution("scratch.output_conv1", (width // 2, width, 3, 3), width // 2)
    yield from convolution("scratch.output_conv2.0", (HIDDEN, width // 2, 3, 3), HIDDEN)
    yield from convolution("scratch.output_conv2.2", (out, HIDDEN, 1, 1), out)
