"""Small convolutional networks in place of the two ResNets, to be trained from scratch on a CPU."""

from __future__ import annotations

from torch import Tensor, nn

PATCH = 4
"""Pixels of each side of the squares that the first layer cuts a picture into."""


class SmallEncoder(nn.Module):
    """(N, inputs, H, W) -> (N, 2 * width, cells, cells): squares of pixels, then two convolutions."""

    def __init__(self, inputs: int, width: int, cells: int) -> None:
        super().__init__()
        outputs = small_channels(width)
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, width, PATCH, PATCH),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(4, outputs),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(cells),
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


def small_channels(width: int) -> int:
    """Channels of the output."""
    return 2 * width
