"""Encoders of frames that end in a grid of cells or in a vector: ResNets, or small ones to be trained on a CPU.

They work in two steps, so that what a frozen network made of a frame can be kept: `features` runs the
convolutions, `forward` does the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agents.common.towers.resnet import GRID, DepthResnet, imagenet_normalized, rgb_resnet

POSITION_SIZE = 64
PATCH = 4
"""Pixels of each side of the squares that the first layer of a small encoder cuts a picture into."""


class Positions(nn.Embedding):
    """Learned vectors of the cells, appended to a grid of features as channels."""

    def __init__(self) -> None:
        super().__init__(GRID**2, POSITION_SIZE)

    @property
    def channels(self) -> Tensor:
        """(POSITION_SIZE, cells). The table is laid out as channels row by row, as VLN-CE does it: a cell's
        channels are not a row of it."""
        return self.weight.view(POSITION_SIZE, GRID**2)

    def append_to(self, grid: Tensor) -> Tensor:
        """(N, C, GRID, GRID) -> (N, C + POSITION_SIZE, GRID, GRID)."""
        cells = self.channels.view(1, POSITION_SIZE, GRID, GRID).expand(len(grid), -1, -1, -1)
        return torch.cat([grid, cells], dim=1)


class CellLayer(nn.Conv1d):
    """A layer on every cell of a grid and its position, which it applies once: it is the same in all frames."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 1)

    def forward(self, grid: Tensor, positions: Tensor) -> Tensor:  # type: ignore[override]
        """(N, C, cells) and (POSITION_SIZE, cells) -> (N, cells, outputs)."""
        own, placed = torch.split(self.weight.squeeze(2), [grid.shape[1], len(positions)], dim=1)
        places = nn.functional.linear(positions.t(), placed, self.bias)
        return nn.functional.linear(grid.transpose(1, 2), own) + places


class Patches(nn.Conv2d):
    """A convolution of squares that touch and do not overlap, as one matrix product, which is faster on a CPU."""

    def __init__(self, inputs: int, outputs: int, side: int) -> None:
        super().__init__(inputs, outputs, side, side)

    def forward(self, images: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, outputs, H // side, W // side)."""
        side = self.kernel_size[0]
        count, channels, height, width = images.shape
        h, w = height // side, width // side
        squares = images[:, :, : h * side, : w * side].reshape(count, channels, h, side, w, side)
        rows = squares.permute(0, 2, 4, 1, 3, 5).reshape(count * h * w, channels * side**2)
        found = nn.functional.linear(rows, self.weight.flatten(1), self.bias)
        return found.view(count, h, w, -1).permute(0, 3, 1, 2)


class SmallEncoder(nn.Module):
    """In place of a ResNet, to be trained on a CPU: (N, inputs, H, W) -> (N, 2 * width, cells, cells)."""

    def __init__(self, inputs: int, width: int, cells: int) -> None:
        super().__init__()
        outputs = small_channels(width)
        self.layers = nn.Sequential(
            Patches(inputs, width, PATCH),
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


class RgbEncoder(nn.Module):
    """RGB frames -> a grid with positions, or a vector of `size`."""

    def __init__(self, width: int, size: int, *, small: bool, grid: bool, tuned: bool, normalize: bool) -> None:
        super().__init__()
        self._normalize, self._tuned, self._grid = normalize, tuned, grid
        cells = GRID if grid or small else 1
        self.cnn = SmallEncoder(3, width, cells) if small else rgb_resnet(width, cells)
        self.cnn.requires_grad_(tuned)
        channels = small_channels(width) if small else 32 * width
        self.output_size = channels + POSITION_SIZE if grid else size
        if grid:
            self.spatial_embeddings = Positions()
        else:
            self.fc = _vector(channels * cells**2, size)

    def features(self, frames: Tensor) -> Tensor:
        """(N, H, W, 3) uint8 -> (N, channels, GRID, GRID), or (..., 1, 1) for a vector from the ResNet."""
        images = frames.permute(0, 3, 1, 2).float() / 255.0
        grid: Tensor = self.cnn(imagenet_normalized(images) if self._normalize else images)
        return grid

    def forward(self, features: Tensor) -> Tensor:
        """Features -> (N, C, GRID, GRID) or (N, size)."""
        found: Tensor = self.spatial_embeddings.append_to(features) if self._grid else self.fc(features)
        return found

    def train(self, mode: bool = True) -> RgbEncoder:
        """Training mode, in which a frozen network still uses the statistics that it was trained with."""
        super().train(mode)
        self.cnn.train(mode and self._tuned)
        return self


class DepthEncoder(nn.Module):
    """Depth images -> a grid with positions, or a vector of `size`."""

    def __init__(self, planes: int, size: int, *, small: bool, grid: bool, tuned: bool) -> None:
        super().__init__()
        self._small, self._grid = small, grid
        self.visual_encoder = SmallEncoder(1, planes, GRID) if small else DepthResnet(planes)
        self.visual_encoder.requires_grad_(tuned)
        channels = small_channels(planes) if small else DepthResnet.CHANNELS
        self.output_size = channels + POSITION_SIZE if grid else size
        if grid:
            self.spatial_embeddings = Positions()
        else:
            self.visual_fc = _vector(channels * GRID**2, size)

    def features(self, depth: Tensor) -> Tensor:
        """(N, H, W) float in [0, 1] -> (N, channels, GRID, GRID); the ResNet takes 256 x 256 pixels."""
        grid: Tensor = self.visual_encoder(depth.unsqueeze(1) if self._small else depth)
        return grid

    def forward(self, features: Tensor) -> Tensor:
        """Features -> (N, C, GRID, GRID) or (N, size)."""
        found: Tensor = self.spatial_embeddings.append_to(features) if self._grid else self.visual_fc(features)
        return found


def _vector(numbers: int, size: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(numbers, size), nn.ReLU())
