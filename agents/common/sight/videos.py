"""Videos of training samples as CLIP's towers take them: read and at times jittered, or by known features."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.common.packing.frames import Frame, Known, frame_key
from agents.common.sight.decoding import frames_of
from agents.common.sight.pictures import content_of, decoded
from agents.common.sight.reader import REMEDY
from agents.common.towers.eva import crop, network_input, squared

JITTER, DROPPED, DOUBLED, LAST_DOUBLED = 0.05, 0.1, 0.03, 0.06
"""Shares of frames, as Uni-NaVid is trained (arXiv 2412.06224)."""
NOTHING = frame_key(b"nothing")

Picture = Callable[[], NDArray[np.uint8]]


class VideoReader:
    """Reads frames as float32 (n, 3, size, size), or with their keys where features are `known`."""

    def __init__(self, size: int, known: Known | None = None) -> None:
        self._size, self._known = size, known

    def nothing(self) -> Tensor | list[Frame]:
        """In the place of a picture, of samples without one."""
        zeros = torch.zeros(3, self._size, self._size)
        if self._known is None:
            return zeros[None]
        features = self._known(NOTHING)
        return [Frame(NOTHING, features, None if features is not None else zeros)]

    def pictures(self, paths: Sequence[Path], rng: random.Random, augmented: bool) -> Tensor | list[Frame]:
        """Image files as a video. augmented: as `rng` says."""
        frames = [(partial(content_of, each, REMEDY), partial(_picture, each)) for each in paths]
        return self._read(frames, rng, augmented)

    def crops(self, paths: Sequence[Path]) -> list[NDArray[np.uint8]]:
        """Image files as an agent keeps frames."""
        return [crop(_picture(path), self._size) for path in paths]

    def picture(self, path: Path, rng: random.Random) -> Tensor | list[Frame]:
        """A single one, of which nothing is cut off."""
        content = partial(bytes.__add__, b"squared", content_of(path, REMEDY))
        return self._read([(content, lambda: squared(_picture(path)))], rng, augmented=False)

    def video(self, path: Path, rng: random.Random, augmented: bool) -> Tensor | list[Frame]:
        """The frames of a video's file."""
        content = b"" if self._known is None else content_of(path, REMEDY)
        frames = [
            (partial(bytes.__add__, content, b"%d" % number), partial(_frame, path, number))
            for number in range(len(frames_of(path)))
        ]
        return self._read(frames, rng, augmented)

    def _read(
        self, frames: Sequence[tuple[Callable[[], bytes], Picture]], rng: random.Random, augmented: bool
    ) -> Tensor | list[Frame]:
        """Frames of which are given the content, for a key, and what they show."""
        augmented = augmented and len(frames) > 1
        chosen = drawn_frames(len(frames), rng) if augmented else range(len(frames))
        if self._known is not None:
            return [self._keyed(*frames[number], self._known) for number in chosen]
        if not augmented:
            return network_input([crop(frames[number][1](), self._size) for number in chosen])
        draws = np.random.RandomState(rng.getrandbits(32))
        return network_input([crop(jittered(frames[number][1](), draws), self._size) for number in chosen])

    def _keyed(self, content: Callable[[], bytes], picture: Picture, known: Known) -> Frame:
        key = frame_key(content())
        features = known(key)
        seen = None if features is not None else network_input([crop(picture(), self._size)])[0]
        return Frame(key, features, seen)


def _picture(path: Path) -> NDArray[np.uint8]:
    return decoded(path, lambda image: np.asarray(image.convert("RGB")), REMEDY)


def _frame(path: Path, number: int) -> NDArray[np.uint8]:
    return frames_of(path)[number]


def drawn_frames(count: int, rng: random.Random) -> list[int]:
    """Which of a video's frames are shown: a few are left out, never the last, and a few are there twice."""
    left_out = rng.randint(0, math.ceil(DROPPED * (count - 1)))
    found: list[int] = []
    for number in [*sorted(rng.sample(range(count - 1), count - 1 - left_out)), count - 1]:
        found.append(number)
        if rng.random() < DOUBLED or (number == count - 1 and rng.random() < LAST_DOUBLED):
            found.append(number)
    return found


def jittered(frame: NDArray[np.uint8], draws: np.random.RandomState) -> NDArray[np.uint8]:
    """A frame with other brightness, contrast and saturation, each at times; rounded down, as published."""
    for kind in ("brightness", "contrast", "saturation"):
        if draws.rand() < JITTER:
            factor = draws.uniform(0.8, 1.2)
            colors = frame.astype(np.float32)
            mean: Any = 0.0
            if kind != "brightness":
                mean = colors.mean(axis=(0, 1) if kind == "contrast" else 2, keepdims=True)
            frame = np.clip((colors - mean) * factor + mean, 0, 255).astype(np.uint8)
    return frame
