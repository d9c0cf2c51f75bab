"""The sizes that make a VGGT."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GeometrySizes:
    """Sizes of the VGGT aggregator, of its DINO part and of the two heads that lie unused in checkpoints.

    `position_side` is the side of DINO's position table in patches. `head_width` and `head_channels` are those of
    the heads' convolutions.
    """

    width: int
    intermediate_size: int
    depth: int
    heads: int
    registers: int
    dino_intermediate_size: int
    dino_depth: int
    dino_registers: int
    position_side: int
    head_width: int
    head_channels: tuple[int, ...]


VGGT_1B = GeometrySizes(
    width=1024,
    intermediate_size=4096,
    depth=24,
    heads=16,
    registers=4,
    dino_intermediate_size=4096,
    dino_depth=24,
    dino_registers=4,
    position_side=37,
    head_width=256,
    head_channels=(256, 512, 1024, 1024),
)
"""VGGT (arXiv 2503.11347)."""
