"""Reads the frames of walks, RGB and depth, from their files or from one file that holds them decoded, or that
holds what frozen encoders make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from agents.common.sets.trajectories import Trajectory
from agents.common.sight.pictures import AGAIN, decoded
from agents.vlnce.config import Views
from agents.vlnce.views import halved, scaled
from vlnbench.errors import UsageError
from vlnbench.training.kept_frames import KeptFrames, keep_frames, kept_name

Files = Sequence[tuple[Path, Path]]
"""RGB and depth image of every frame."""


class Windows(Protocol):
    """A set as it is read: its file, how many frames its windows have, and where those of a window lie."""

    @property
    def file(self) -> Path: ...

    @property
    def windows(self) -> int: ...

    def frame_counts(self) -> list[int]: ...

    def files(self, window: int) -> Files: ...


def frame_files(walk: Trajectory) -> Files:
    """RGB and depth image of every frame."""
    depth = walk.frames_dir.parent / "depth"
    return [(path, depth / f"{i:03d}.png") for i, path in enumerate(walk.frames())]


def check_depth(file: Path, walks: Sequence[Trajectory]) -> None:
    """Raise UsageError for a set whose walks have no depth at every frame."""
    for walk in walks:
        folder = walk.frames_dir.parent / "depth"
        found = len(list(folder.iterdir())) if folder.is_dir() else 0
        if found != len(walk.actions):
            raise UsageError(
                f"{file}: {folder}: expected {len(walk.actions)} depth images, found {found}; collect with --depth"
            )


def read_frames(files: Files, views: Views) -> tuple[Tensor, Tensor]:
    """Frames one after the other, as `read_frame` has them."""
    rgb, depth = zip(*(read_frame(*each, views) for each in files), strict=True)
    return torch.stack(rgb), torch.stack(depth)


def read_frame(rgb: Path, depth: Path, views: Views) -> tuple[Tensor, Tensor]:
    """RGB, uint8 (H, W, 3), and depth, float32 (h, w) in [0, 1] or uint8 levels of it, for the network."""
    picture = _frame(rgb, lambda image: np.asarray(image.convert("RGB")), views.frame)
    meters = _frame(depth, np.asarray, views.depth_frame).astype(np.float32) / np.float32(1000)
    if views.halved:
        colors, levels = halved(picture, meters, views)
        return torch.from_numpy(colors), torch.from_numpy(levels)
    return torch.from_numpy(picture.copy()), torch.from_numpy(scaled(meters, views))


@dataclass(frozen=True)
class Packed:
    """The frames of a set's windows, decoded."""

    kept: KeptFrames
    views: Views

    def frames(self, window: int) -> tuple[Tensor, Tensor]:
        """RGB and depth of a window's frames, as `read_frames` has them."""
        return _apart(self.kept.frames(window), self.views)


@dataclass(frozen=True)
class PackedFeatures:
    """What frozen encoders make of the frames of a set's windows."""

    kept: KeptFrames

    def frames(self, window: int) -> Tensor:
        """Features of a window's frames, (F, numbers) float32."""
        return torch.from_numpy(self.kept.frames(window)).view(torch.float32)


def pack(folder: Path, content: Windows, views: Views) -> Packed:
    """The decoded frames of the windows of a set, kept in `folder`.

    Raises UsageError if a frame cannot be read or the folder cannot be written.
    """
    rows = partial(_rows, content, views)
    return Packed(keep_frames(folder, _name(content, views), content.frame_counts(), _size(views), rows), views)


def pack_features(
    folder: Path, content: Windows, views: Views, fingerprint: str, encode: Callable[[Tensor, Tensor], Tensor]
) -> PackedFeatures:
    """What `encode` makes of frames as `read_frames` has them, (F, numbers) float32, kept in `folder`.

    It is called in this process; frames are decoded in others. fingerprint: of all that features depend on beside
    the frames. Raises UsageError as `pack` does.
    """

    def encoded(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return encode(*_apart(rows, views)).numpy().view(np.uint8)

    (height, width), (h, w) = views.inputs
    blank = encode(torch.zeros(1, height, width, 3, dtype=torch.uint8), torch.zeros(1, h, w))
    size, name = blank.shape[1] * blank.element_size(), _name(content, views, fingerprint)
    rows = partial(_rows, content, views)
    return PackedFeatures(keep_frames(folder, name, content.frame_counts(), size, rows, encoded))


def _name(content: Windows, views: Views, *facts: object) -> str:
    firsts = (content.files(window)[0][0] for window in range(content.windows))
    return kept_name(content.file, firsts, views, PIL.__version__, *facts)


def _depth_dtype(views: Views) -> type[np.generic]:
    return np.uint8 if views.halved else np.float32


def _size(views: Views) -> int:
    """Bytes of a decoded frame, RGB and depth one after the other."""
    (height, width), (h, w) = views.inputs
    return 3 * height * width + h * w * np.dtype(_depth_dtype(views)).itemsize


def _rows(content: Windows, views: Views, window: int) -> NDArray[np.uint8]:
    """The decoded frames of a window, (F, bytes)."""
    rgb, depth = (each.numpy() for each in read_frames(content.files(window), views))
    return np.concatenate([rgb.reshape(len(rgb), -1), depth.reshape(len(depth), -1).view(np.uint8)], axis=1)


def _apart(rows: NDArray[np.uint8], views: Views) -> tuple[Tensor, Tensor]:
    """RGB and depth of decoded frames, as `read_frames` has them."""
    (height, width), (h, w) = views.inputs
    end = 3 * height * width
    depths = np.ascontiguousarray(rows[:, end:]).view(_depth_dtype(views))
    return (
        torch.from_numpy(np.ascontiguousarray(rows[:, :end]).reshape(-1, height, width, 3)),
        torch.from_numpy(depths.reshape(-1, h, w)),
    )


def _frame(path: Path, read: Callable[[Image.Image], NDArray[Any]], size: tuple[int, int]) -> NDArray[Any]:
    found = decoded(path, read, AGAIN)
    if found.shape[:2] != size:
        (height, width), (h, w) = found.shape[:2], size
        raise UsageError(
            f"{path}: {width}x{height} pixels, the network reads {w}x{h}: collect with --frame-width {w}"
        )
    return found
