"""What the parts of a frame show, as sets of questions know it, and the head that learns to tell it.

A network that learns from walks alone may never learn to see: a turn too early is seldom wrong for what was not
recognized. The head works while training and is not kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from agents.common.sight.pictures import decoded
from vlnbench.data.sets import CATEGORIES
from vlnbench.errors import UsageError
from vlnbench.util.durable.limits import regular

MOST = 255
"""Names that a channel can number."""
LEAST_SHARE = 0.05
"""Of the pixels of a cell that belong to something which is to be seen there."""
RARE = 5.0
"""Weight of what is there; most of all names are absent from most cells."""


@dataclass(frozen=True)
class Semantics:
    """The names that each channel of a set's semantic images numbers, from 1 on."""

    file: Path
    names: tuple[tuple[str, ...], ...]

    @property
    def count(self) -> int:
        """How many in all."""
        return sum(map(len, self.names))

    def shown(self, path: Path, grid: int) -> Tensor:
        """Which names the cells of an image show, bool (names, grid, grid). Raises UsageError for a bad file."""
        image = self._image(path)
        height, width = image.shape[:2]
        rows, columns = np.arange(height) * grid // height, np.arange(width) * grid // width
        cells = rows[:, None] * grid + columns
        size = np.bincount(cells.ravel(), minlength=grid**2)
        found = []
        for channel, names in enumerate(self.names):
            at = image[..., channel].astype(np.int64) * grid**2 + cells
            pixels = np.bincount(at.ravel(), minlength=(len(names) + 1) * grid**2).reshape(-1, grid**2)[1:]
            found.append(pixels > LEAST_SHARE * size)
        return torch.from_numpy(np.concatenate(found).reshape(-1, grid, grid))

    def packed_size(self, grid: int) -> int:
        """Bytes of what the cells of a frame show."""
        return -(-self.count * grid**2 // 8)

    def packed(self, shown: Tensor) -> NDArray[np.uint8]:
        """What the cells of frames show, (F, names, grid, grid), in bits, (F, packed_size)."""
        return np.packbits(shown.flatten(1).numpy(), axis=1)

    def unpacked(self, bits: NDArray[np.uint8], grid: int) -> Tensor:
        """The way back."""
        shown = np.unpackbits(bits, axis=1, count=self.count * grid**2).astype(bool)
        return torch.from_numpy(shown).view(-1, self.count, grid, grid)

    def _image(self, path: Path) -> NDArray[np.uint8]:
        image, sizes = decoded(path, np.asarray, "make the set again"), list(map(len, self.names))
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != len(sizes):
            raise UsageError(f"{path}: expected {len(sizes)} channels of 8 bits, see {self.file.name}")
        largest = image.reshape(-1, len(sizes)).max(axis=0).tolist()
        if any(one > count for one, count in zip(largest, sizes, strict=True)):
            raise UsageError(f"{path}: numbers up to {largest}, {self.file.name} names {sizes}")
        return image


def read_semantics(folder: Path) -> Semantics | None:
    """What a folder of questions says of its semantic images; None where it has none. Raises UsageError."""
    path = folder / CATEGORIES
    if not path.exists():
        return None
    try:
        channels = json.loads(regular(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error})") from error
    lists = list(channels.values()) if isinstance(channels, dict) else []
    if not lists or not all(isinstance(each, list) and 0 < len(each) <= MOST for each in lists):
        raise UsageError(f"{path}: expected lists of 1 to {MOST} names, by channel")
    return Semantics(path, tuple(tuple(map(str, each)) for each in lists))


def agreed(known: Semantics | None, found: Semantics | None) -> Semantics | None:
    """What sets know together. Raises UsageError where two of them have other names."""
    if known is not None and found is not None and known.names != found.names:
        raise UsageError(f"{found.file}: other names than {known.file}; leave one of the sets out")
    return known or found


class AuxiliaryLoss(nn.Module):
    """Tells from features of a cell what it shows; these may be of several encoders."""

    def __init__(self, channels: Sequence[int], names: int) -> None:
        super().__init__()
        self.channels, self.names = tuple(channels), names
        self.parts = nn.ModuleList(nn.Conv2d(each, names, 1, bias=not i) for i, each in enumerate(channels))

    def forward(self, features: Sequence[Tensor], shown: Tensor) -> Tensor:
        """The mean loss of features (F, channels, grid, grid) at `shown` (F, names, grid, grid), a scalar."""
        told = torch.stack([part(each) for part, each in zip(self.parts, features, strict=True)]).sum(0)
        loss: Tensor = functional.binary_cross_entropy_with_logits(
            told, shown.to(told.dtype), pos_weight=torch.tensor(RARE, device=told.device, dtype=told.dtype)
        )
        return loss


def make_auxiliary_loss(semantics: Semantics | None, channels: Sequence[int], seed: int) -> AuxiliaryLoss:
    """What learns to tell what frames show; the same seed gives the same weights. Raises UsageError without a set
    that knows it."""
    if semantics is None:
        raise UsageError(
            "--semantic-weight: no set knows what its frames show; name one of data questions --semantic"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AuxiliaryLoss(channels, semantics.count)
