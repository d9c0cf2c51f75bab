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
    for name, found, wanted in (
        ("RGB", seen.rgb.shape[:2], views.frame),
        ("depth", seen.depth.shape, views.depth_frame),
    ):
        if found != wanted and not views.halved:
            (height, width), (h, w) = found, wanted
            raise UsageError(f"{name} frames are {width}x{height}, the checkpoint was trained with {w}x{h}")
    rgb, depth = as_read(seen.rgb, seen.depth, views)
    return rgb, share_of(depth)


def as_read(rgb: NDArray[np.uint8], depth: NDArray[np.float32], views: Views) -> tuple[Tensor, Tensor]:
    """RGB, uint8 (H, W, 3), and depth, float32 (h, w) in [0, 1] or uint8 levels of it, of a frame in meters."""
    if views.halved:
        colors = np.rint(_means(_sampled(rgb, views.frame).astype(np.float32))).astype(np.uint8)
        share = _means(scaled(_sampled(depth, views.depth_frame), views))
        return torch.from_numpy(colors), torch.from_numpy(np.rint(share * LEVELS).astype(np.uint8))
    picture, depths = torch.from_numpy(np.array(rgb)), torch.from_numpy(scaled(depth, views))
    if views.shortest_edge is None:
        return picture, depths
    picture = _resized(picture.permute(2, 0, 1), views.shortest_edge).permute(1, 2, 0)
    depths = _resized(depths[None], views.shortest_edge)[0]
    return _cropped(picture, views.rgb_crop), _cropped(depths, views.depth_crop)


def scaled(depth: NDArray[np.float32], views: Views) -> NDArray[np.float32]:
    """Depth in meters as a share of the range that the network knows."""
    nearest, farthest = views.depth_range_m
    share = (np.clip(depth, nearest, farthest) - nearest) / np.float32(farthest - nearest)
    return np.asarray(share.astype(np.float32))


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
    """A set as it is read: its file, its windows, where the frames of one lie, and what is kept of them."""

    @property
    def file(self) -> Path: ...

    @property
    def windows(self) -> int: ...

    @property
    def kept(self) -> Kept | None: ...

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
    """See `as_read`. Raises UsageError for files that cannot be read or are of another size."""
    picture = _frame(rgb, lambda image: np.asarray(image.convert("RGB")), views.frame)
    meters = _frame(depth, np.asarray, views.depth_frame).astype(np.float32) / np.float32(1000)
    return as_read(picture, meters, views)


@dataclass(frozen=True)
class Kept:
    """The frames of a set's windows: decoded, or where `views` is None what frozen encoders make of them."""

    rows: KeptFrames
    views: Views | None

    def frames(self, window: int) -> tuple[Tensor, Tensor] | Tensor:
        """RGB and depth of a window's frames, as `read_frames` has them; or features, (F, numbers) float32."""
        rows = torch.from_numpy(self.rows.frames(window))
        return rows.view(torch.float32) if self.views is None else apart(rows, self.views)


def keep(
    folder: Path,
    content: Windows,
    views: Views,
    encode: Callable[[Tensor, Tensor], Tensor] | None = None,
    made_by: str = "",
) -> Kept:
    """The frames of the windows of a set, kept in `folder`: decoded, or (F, numbers) float32 that `encode` makes.

    encode: takes frames as `read_frames` has them; called in this process, while others decode. made_by: hash of
    all that features depend on beside the frames. Raises UsageError if a frame cannot be read or the folder cannot
    be written.
    """
    firsts, counts = zip(
        *((files[0][0], len(files)) for files in map(content.files, range(content.windows))), strict=True
    )
    name = kept_name(content.file, firsts, views, PIL.__version__, *([made_by] if encode else []))
    (height, width), (h, w) = views.inputs
    size = 3 * height * width + h * w * _depth_type(views).itemsize

    def features(rows: Tensor) -> NDArray[np.uint8]:
        assert encode is not None
        return encode(*apart(rows, views)).numpy().view(np.uint8)

    if encode is not None:
        size = features(torch.zeros(1, size, dtype=torch.uint8)).shape[1]
    encoded = None if encode is None else lambda rows: features(torch.from_numpy(rows))
    decoded_rows = partial(_rows, content, views)
    rows = keep_frames(folder, name, counts, size, decoded_rows, encoded)
    return Kept(rows, None if encode else views)


def _rows(content: Windows, views: Views, window: int) -> NDArray[np.uint8]:
    return joined(*read_frames(content.files(window), views)).numpy()


def _depth_type(views: Views) -> torch.dtype:
    return torch.uint8 if views.halved else torch.float32


def joined(rgb: Tensor, depth: Tensor) -> Tensor:
    """Frames as `read_frames` has them in one row each, uint8 (F, bytes); `apart` is the way back."""
    return torch.cat([rgb.flatten(1), depth.flatten(1).view(torch.uint8)], dim=1)


def apart(rows: Tensor, views: Views) -> tuple[Tensor, Tensor]:
    """RGB and depth of frames in rows."""
    (height, width), (h, w) = views.inputs
    rgb, depth = torch.split(rows, [3 * height * width, rows.shape[1] - 3 * height * width], dim=1)
    depth = depth.clone(memory_format=torch.contiguous_format)  # floats lie where they may
    return rgb.reshape(-1, height, width, 3), depth.view(_depth_type(views)).view(-1, h, w)


def _frame(path: Path, read: Callable[[Image.Image], NDArray[Any]], size: tuple[int, int]) -> NDArray[Any]:
    found = decoded(path, read, AGAIN)
    if found.shape[:2] != size:
        (height, width), (h, w) = found.shape[:2], size
        raise UsageError(
            f"{path}: {width}x{height} pixels, the network reads {w}x{h}: collect with --frame-width {w}"
        )
    return found
