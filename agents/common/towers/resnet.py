"""The two ResNet-50 of VLN-CE: torchvision's for RGB (batch norm) and DD-PPO's for depth (group norm).

Names of parameters are those of the released checkpoints.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

BLOCKS = (3, 4, 6, 3)
EXPANSION = 4
GRID = 4
"""Both networks end in GRID x GRID cells."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class RgbBlock(nn.Module):
    """A bottleneck of torchvision's ResNet, with the stride in the 3x3 convolution."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.downsample is None else self.downsample(x)
        x = functional.relu(self.bn1(self.conv1(x)))
        x = functional.relu(self.bn2(self.conv2(x)))
        return functional.relu(self.bn3(self.conv3(x)) + kept)


class DepthBlock(nn.Module):
    """A bottleneck of DD-PPO's ResNet, with the stride in the 3x3 convolution."""

    def __init__(self, inputs: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.convs = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.GroupNorm(groups, outputs),
        )
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.GroupNorm(groups, outputs))

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.downsample is None else self.downsample(x)
        return functional.relu(self.convs(x) + kept)


def rgb_resnet(width: int, cells: int) -> nn.Sequential:
    """ResNet-50 without its head: (N, 3, H, W) -> (N, 32 * width, cells, cells); children are torchvision's."""
    children: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = width
    for stage, count in enumerate(BLOCKS):
        blocks = []
        for i in range(count):
            blocks.append(RgbBlock(inputs, width << stage, 2 if stage and i == 0 else 1))
            inputs = (width << stage) * EXPANSION
        children.append(nn.Sequential(*blocks))
    return nn.Sequential(*children, nn.AdaptiveAvgPool2d(cells))


class DepthBackbone(nn.Module):
    """(N, 1, H, W) -> (N, 32 * planes, H / 32, W / 32)."""

    def __init__(self, planes: int) -> None:
        super().__init__()
        groups = max(1, planes // 2)
        self.conv1 = nn.Sequential(
            nn.Conv2d(1, planes, 7, 2, 3, bias=False), nn.GroupNorm(groups, planes), nn.ReLU()
        )
        inputs = planes
        for stage, count in enumerate(BLOCKS):
            blocks = []
            for i in range(count):
                blocks.append(DepthBlock(inputs, planes << stage, 2 if stage and i == 0 else 1, groups))
                inputs = (planes << stage) * EXPANSION
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.conv1(x), 3, 2, 1)
        for stage in range(len(BLOCKS)):
            x = getattr(self, f"layer{stage + 1}")(x)
        return x


class DepthResnet(nn.Module):
    """DD-PPO's depth encoder: (N, H, W) in [0, 1] -> (N, CHANNELS, GRID, GRID) for 256 x 256 pixels."""

    CHANNELS = 2048 // GRID**2

    def __init__(self, planes: int) -> None:
        super().__init__()
        self.backbone = DepthBackbone(planes)
        compress = nn.Conv2d(planes * 32, self.CHANNELS, 3, padding=1, bias=False)
        self.compression = nn.Sequential(compress, nn.GroupNorm(1, self.CHANNELS), nn.ReLU())

    def forward(self, depth: Tensor) -> Tensor:
        halved = functional.avg_pool2d(depth.unsqueeze(1), 2)
        features: Tensor = self.compression(self.backbone(halved))
        return features


def imagenet_normalized(images: Tensor) -> Tensor:
    """(N, 3, H, W) in [0, 1], with torchvision's mean and deviation per channel."""
    mean = torch.tensor(IMAGENET_MEAN, device=images.device).view(3, 1, 1)
    return (images - mean) / torch.tensor(IMAGENET_STD, device=images.device).view(3, 1, 1)
