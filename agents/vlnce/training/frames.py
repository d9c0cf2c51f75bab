"""Reads the frames of walks, RGB and depth, from their files or from one file that holds them decoded."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from agents.common.trajectories import Trajectory
from agents.vlnce.config import Views
from agents.vlnce.views import halved, scaled
from vlnbench.errors import UsageError
from vlnbench.training.kept_frames import KeptFrames, keep_frames, kept_name
from vlnbench.util.durable.limits import regular

Files = Sequence[tuple[Path, Path]]
"""RGB and depth image of every frame."""
MOST_PIXELS = 4096
"""Width and height of an image."""
_AGAIN = "collect the set again"


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
    """The frames of a set's windows, decoded. shapes: of RGB and depth of a frame, which follow one another."""

    kept: KeptFrames
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    depth_dtype: str

    def frames(self, window: int) -> tuple[Tensor, Tensor]:
        """RGB and depth of a window's frames, as `read_frames` has them."""
        rows, rgb = self.kept.frames(window), math.prod(self.shapes[0])
        depths = np.ascontiguousarray(rows[:, rgb:]).view(self.depth_dtype)
        return (
            torch.from_numpy(np.ascontiguousarray(rows[:, :rgb]).reshape(-1, *self.shapes[0])),
            torch.from_numpy(depths.reshape(-1, *self.shapes[1])),
        )


def pack(folder: Path, content: Windows, views: Views) -> Packed:
    """The decoded frames of the windows of a set, kept in `folder`.

    Raises UsageError if a frame cannot be read or the folder cannot be written.
    """
    (height, width), (h, w) = views.inputs
    depth_dtype = "uint8" if views.halved else "float32"
    size = 3 * height * width + h * w * np.dtype(depth_dtype).itemsize

    def rows(window: int) -> NDArray[np.uint8]:
        rgb, depth = (each.numpy() for each in read_frames(content.files(window), views))
        return np.concatenate([rgb.reshape(len(rgb), -1), depth.reshape(len(depth), -1).view(np.uint8)], axis=1)

    firsts = (content.files(window)[0][0] for window in range(content.windows))
    name = kept_name(content.file, firsts, views, PIL.__version__)
    kept = keep_frames(folder, name, content.frame_counts(), size, rows)
    return Packed(kept, ((height, width, 3), (h, w)), depth_dtype)


def content_of(path: Path, remedy: str = _AGAIN) -> bytes:
    """The bytes of an image file. Raises UsageError if it cannot be read."""
    try:
        return regular(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error


def decoded(path: Path, read: Callable[[Image.Image], NDArray[Any]], remedy: str) -> NDArray[Any]:
    """What `read` makes of an image file. Raises UsageError for one that is broken or larger than a camera's."""
    try:
        with Image.open(io.BytesIO(content_of(path, remedy))) as image:
            if max(image.size) > MOST_PIXELS:
                raise UsageError(f"{path}: {image.width}x{image.height} pixels, expected at most {MOST_PIXELS}")
            return read(image)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # SyntaxError is Pillow's for broken PNG
        raise UsageError(f"{path}: cannot be read as an image ({error}); {remedy}") from error


def _frame(path: Path, read: Callable[[Image.Image], NDArray[Any]], size: tuple[int, int]) -> NDArray[Any]:
    found = decoded(path, read, _AGAIN)
    if found.shape[:2] != size:
        (height, width), (h, w) = found.shape[:2], size
        raise UsageError(
            f"{path}: {width}x{height} pixels, the network reads {w}x{h}: collect with --frame-width {w}"
        )
    return found
