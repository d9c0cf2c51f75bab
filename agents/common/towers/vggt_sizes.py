"""VGGT's sizes, read from the shapes of a checkpoint's tensors, and its two heads that are kept and never run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from agents.common.towers.geometry_sizes import GeometrySizes
from vlnbench.errors import UsageError

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


def geometry_sizes(shapes: Mapping[str, tuple[int, ...]], where: str) -> GeometrySizes:
    """Sizes of the aggregator from the shapes of a checkpoint's tensors, by name.

    Nothing is allocated for them: whether every tensor fits the sizes is checked afterwards, name by name. Raises
    UsageError for the first tensor that the sizes need and that is absent or of the wrong rank; `where` is the
    checkpoint's folder.
    """

    def shape(name: str, rank: int) -> tuple[int, ...]:
        full = f"vggt.{name}"
        if full not in shapes:
            raise UsageError(f"{where}: the weights are not those of JanusVLN: 1 missing: {full}")
        if len(shapes[full]) != rank or 0 in shapes[full]:
            raise UsageError(f"{where}: {full} has shape {list(shapes[full])}: expected {rank} sizes above 0")
        return shapes[full]

    width, head = (
        shape("aggregator.camera_token", 4)[3],
        shape("aggregator.frame_blocks.0.attn.q_norm.weight", 1)[0],
    )
    positions = shape("aggregator.patch_embed.pos_embed", 3)[1] - 1
    side = round(positions**0.5)
    depth = _count(shapes, "vggt.aggregator.frame_blocks.")
    if depth < 2:
        raise UsageError(
            f"{where}: vggt.aggregator has {depth} frame blocks: expected 2 or more (the last is not used)"
        )
    if width % head or head % 4:
        raise UsageError(f"{where}: vggt.aggregator: heads of {head} do not fit a width of {width}")
    if side**2 != positions or side < 1:
        raise UsageError(f"{where}: vggt.aggregator.patch_embed.pos_embed: expected 1 + a square of entries")
    return GeometrySizes(
        width=width,
        intermediate_size=shape("aggregator.frame_blocks.0.mlp.fc1.weight", 2)[0],
        depth=depth,
        heads=width // head,
        registers=shape("aggregator.register_token", 4)[2],
        dino_intermediate_size=shape("aggregator.patch_embed.blocks.0.mlp.fc1.weight", 2)[0],
        dino_depth=_count(shapes, "vggt.aggregator.patch_embed.blocks."),
        dino_registers=shape("aggregator.patch_embed.register_tokens", 3)[1],
        position_side=side,
        head_width=shape("depth_head.scratch.layer1_rn.weight", 4)[0],
        head_channels=tuple(shape(f"depth_head.projects.{i}.weight", 4)[0] for i in range(4)),
    )


def _count(shapes: Mapping[str, tuple[int, ...]], prefix: str) -> int:
    """How many different numbers follow a prefix in the names."""
    return len({name[len(prefix) :].partition(".")[0] for name in shapes if name.startswith(prefix)})
