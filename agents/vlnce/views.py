"""Makes network input of what the harness shows: frames, depth in meters, R2R's tokens, RxR's BERT features."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from agents.vlnce.config import FEATURE_SIZE, Views
from vlnbench.errors import UsageError
from vlnbench.interfaces import Episode, Observation
from vlnbench.util.durable.limits import regular

TOKENS_PER_INSTRUCTION = 200
"""Instructions of the preprocessed datasets are filled up with zeros to this length."""
LONGEST_FEATURES = 512
LEVELS = 255
"""Steps of depth in `Views.halved`."""


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


def tokens(episode: Episode, vocab_size: int) -> NDArray[np.int64]:
    """An instruction's tokens, (200,). Raises UsageError for tokens that are not of the vocabulary's dataset."""
    found = np.asarray(episode.instruction_tokens, dtype=np.int64)
    if len(found) != TOKENS_PER_INSTRUCTION or found.max() >= vocab_size:
        what = f"{len(found)} tokens" + (f" up to {found.max()}" if len(found) else "")
        raise UsageError(
            f"episode {episode.episode_id}: instruction_tokens: expected {TOKENS_PER_INSTRUCTION} numbers below "
            f"{vocab_size}, as in R2R_VLNCE_v1-3_preprocessed, found {what}; others number words differently"
        )
    return found


_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[.,;!?]")


def words_of(text: str) -> list[str]:
    """The words and marks of a text, for networks with a vocabulary of their own."""
    return _WORD.findall(text.lower())


def numbered(text: str, numbers: Mapping[str, int]) -> NDArray[np.int64]:
    """A text's words by number, 1 for those without one. Raises UsageError for a text without words."""
    found = [numbers.get(word, 1) for word in words_of(text)]
    if not found:
        raise UsageError(f"instruction {text!r}: has no words")
    return np.array(found, dtype=np.int64)


def word_numbers(vocabulary: Sequence[str]) -> dict[str, int]:
    """Numbers of a vocabulary's words, from 2 on."""
    return {word: number for number, word in enumerate(vocabulary, start=2)}


class TextFeatures:
    """RxR's BERT features in their published layout, `rxr_{split}/{id:06}_{language}_text_features.npz`."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds the files, or the folders `rxr_*` with them. Raises UsageError where there is neither."""
        if not folder.is_dir():
            raise UsageError(f"--text-features {folder}: no such folder; expected RxR_VLNCE_v0/text_features")
        self._folder = folder
        self._folders = [folder, *sorted(path for path in folder.glob("rxr_*") if path.is_dir())]

    def of(self, episode: Episode) -> NDArray[np.float32]:
        """Features of an episode's instruction, (words, 768). Raises UsageError for missing or damaged files."""
        if episode.instruction_id is None or not episode.instruction_id.isdecimal():
            raise UsageError(
                f"episode {episode.episode_id} has no instruction_id: the checkpoint reads RxR's BERT features, "
                "so it needs a benchmark with RxR's episodes"
            )
        language = episode.language.split("-")[0]
        name = f"{int(episode.instruction_id):06}_{language}_text_features.npz"
        for folder in self._folders:
            if (folder / name).is_file():
                return _features(folder / name)
        raise UsageError(f"--text-features {self._folder}: {name} is missing there and in its folders rxr_*")


def _features(path: Path) -> NDArray[np.float32]:
    """The array `features` of one file; its header is checked before memory is set aside."""
    try:
        with zipfile.ZipFile(regular(path)) as archive, archive.open("features.npy") as member:
            version = np.lib.format.read_magic(member)  # type: ignore[no-untyped-call]
            if version != (1, 0):
                raise ValueError(f"npy version {version}")
            header = np.lib.format.read_array_header_1_0(member)  # type: ignore[no-untyped-call]
            shape, fortran, dtype = header
            if len(shape) != 2 or not 1 <= shape[0] <= LONGEST_FEATURES or shape[1] != FEATURE_SIZE:
                raise ValueError(f"expected 1 to {LONGEST_FEATURES} rows of {FEATURE_SIZE}, found {list(shape)}")
            if fortran or dtype.kind != "f":
                raise ValueError("expected floating-point numbers, row by row")
            count = shape[0] * shape[1]
            numbers = np.frombuffer(member.read(count * dtype.itemsize), dtype, count).astype(np.float32)
    except (
        zipfile.BadZipFile,
        KeyError,
        ValueError,
        OSError,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise UsageError(f"{path}: features: cannot be read ({error}); copy the file again") from None
    if not np.isfinite(numbers).all():
        raise UsageError(f"{path}: features: holds numbers that are not finite")
    return numbers.reshape(shape)
