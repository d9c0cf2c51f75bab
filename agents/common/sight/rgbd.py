"""RGB and depth as recurrent networks read them: from cameras, from files of walks, and kept decoded."""

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
from torch.nn import functional

from agents.common.sets.trajectories import Trajectory
from agents.common.sight.options import Views
from agents.common.sight.pictures import AGAIN, decoded
from vlnbench.errors import UsageError
from vlnbench.interfaces import Observation
from vlnbench.training.kept_frames import KeptFrames, keep_frames, kept_name

LEVELS = 255
"""Steps of depth in `Views.halved`."""
Files = Sequence[tuple[Path, Path]]
"""RGB and depth image of every frame."""


def frames(seen: Observation, views: Views) -> tuple[Tensor, Tensor]:
    """RGB, uint8 (H, W, 3), and depth, float32 (H, W) in [0, 1], as the network reads them.

    Raises UsageError for frames of another size than those that the checkpoint was trained with.
    """
    if seen.rgb is None or seen.depth is None:
        raise ValueError("the environment reported no RGB frame or no depth")
    if views.halved:
        colors, levels = halved(seen.rgb, seen.depth, views)
        return torch.from_numpy(colors), share_of(torch.from_numpy(levels))
    for name, found, wanted in (
        ("RGB", seen.rgb.shape[:2], views.frame),
        ("depth", seen.depth.shape, views.depth_frame),
    ):
        if found != wanted:
            (height, width), (h, w) = found, wanted
            raise UsageError(f"{name} frames are {width}x{height}, the checkpoint was trained with {w}x{h}")
    depths = torch.from_numpy(scaled(seen.depth, views))
    rgb = torch.from_numpy(np.ascontiguousarray(seen.rgb))
    if views.shortest_edge is None:
        return rgb, depths
    rgb = _resized(rgb.permute(2, 0, 1), views.shortest_edge).permute(1, 2, 0)
    return _cropped(rgb, views.rgb_crop), _cropped(
        _resized(depths[None], views.shortest_edge)[0], views.depth_crop
    )


def scaled(depth: NDArray[np.float32], views: Views) -> NDArray[np.float32]:
    """Depth in meters as a share of the range that the network knows."""
    nearest, farthest = views.depth_range_m
    share = (np.clip(depth, nearest, farthest) - nearest) / np.float32(farthest - nearest)
    return np.asarray(share.astype(np.float32))


def halved(
    rgb: NDArray[np.uint8], depth: NDArray[np.float32], views: Views
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """RGB, uint8 (h, w, 3), and depth in LEVELS + 1 levels, uint8 (h, w), of frames of any size in meters."""
    colors = _means(_sampled(rgb, views.frame).astype(np.float32))
    share = _means(scaled(_sampled(depth, views.depth_frame), views))
    return np.rint(colors).astype(np.uint8), np.rint(share * LEVELS).astype(np.uint8)


def share_of(depth: Tensor) -> Tensor:
    """Depth in [0, 1], of levels if it is kept in these."""
    return depth.float() / LEVELS if depth.dtype == torch.uint8 else depth


def _sampled(image: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """The pixels of an (H, W) or (H, W, C) image in the middle of the pixels of one of `size`."""
    if image.shape[:2] == size:
        return image
    rows, columns = (
        ((np.arange(few) + 0.5) * many / few).astype(np.int64)
        for many, few in zip(image.shape, size, strict=False)
    )
    return np.ascontiguousarray(image[rows[:, None], columns])


def _means(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Means of every 2 x 2 pixels of an (H, W) or (H, W, C) image."""
    means: NDArray[np.float32] = (image[::2, ::2] + image[1::2, ::2] + image[::2, 1::2] + image[1::2, 1::2]) / 4
    return means


def _resized(image: Tensor, shortest: int) -> Tensor:
    """(C, H, W) scaled by areas so that the shorter side is `shortest`; the type stays, as in habitat-lab."""
    height, width = image.shape[1:]
    scale = shortest / min(height, width)
    size = (int(height * scale), int(width * scale))
    return functional.interpolate(image[None].float(), size=size, mode="area")[0].to(image.dtype)


def _cropped(image: Tensor, size: tuple[int, int]) -> Tensor:
    """The middle of an (H, W) or (H, W, C) image."""
    top, left = (whole // 2 - part // 2 for whole, part in zip(image.shape, size, strict=False))
    return image[top : top + size[0], left : left + size[1]]


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


def flat(rgb: Tensor, depth: Tensor) -> Tensor:
    """A frame as one float32 vector, for the feature cache; `unflat` is the way back, for many."""
    return torch.cat([rgb.flatten().float(), share_of(depth).flatten()])


def unflat(pixels: Tensor, views: Views) -> tuple[Tensor, Tensor]:
    """(N, numbers) as RGB, uint8 (N, H, W, 3), and depth (N, h, w)."""
    frame, depth_frame = views.inputs
    split = frame[0] * frame[1] * 3
    return pixels[:, :split].to(torch.uint8).view(-1, *frame, 3), pixels[:, split:].view(-1, *depth_frame)
