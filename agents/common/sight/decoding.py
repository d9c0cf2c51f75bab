"""Frames of video files, as OpenCV decodes them: so many for a second, or by number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.common.sight.pictures import MOST_PIXELS
from vlnbench.errors import UsageError
from vlnbench.util.durable.limits import regular


@lru_cache(maxsize=1)
def frames_of(path: Path, per_second: int = 1) -> list[NDArray[np.uint8]]:
    """Frames of a video, RGB, uint8 (height, width, 3), so many for a second. Raises UsageError for none."""
    found: list[NDArray[np.uint8]] = []
    with _opened(path) as (video, rate):
        step, number = max(round(rate / per_second), 1), 0
        while video.grab():
            if number % step == 0:
                found.append(_shown(path, video))
            number += 1
    return found or _unreadable(path, "no frames")


@lru_cache(maxsize=1 << 16)
def frame_count(path: Path) -> int:
    """Frames of a video, by decoding them all: what the file says of itself may be wrong."""
    count = 0
    with _opened(path) as (video, _):
        while video.grab():
            count += 1
    return count or _unreadable(path, "no frames")


def frames_at(path: Path, numbers: Sequence[int]) -> dict[int, NDArray[np.uint8]]:
    """Frames of a video by their numbers, RGB, uint8 (height, width, 3); there is none below 0."""
    wanted, found = {number for number in numbers if number >= 0}, dict[int, NDArray[np.uint8]]()
    with _opened(path) as (video, _):
        for number in range(max(wanted, default=-1) + 1):
            if video.grab() and number in wanted:
                found[number] = _shown(path, video)
    return found if found.keys() == wanted else _unreadable(path, "fewer frames than before")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, float]]:
    """A video that OpenCV reads, and its frames a second as the file says."""
    try:
        import cv2  # which no other model needs, and some machines cannot load
    except ImportError as error:
        raise UsageError(
            f"{path}: OpenCV, which reads videos, cannot be loaded ({error}); see vlnbench doctor"
        ) from None
    video = None
    try:
        video = cv2.VideoCapture(str(regular(path)))
        yield video, video.get(cv2.CAP_PROP_FPS)
    except (OSError, cv2.error) as error:
        _unreadable(path, str(error)[:120])
    finally:
        if video is not None:
            video.release()


def _shown(path: Path, video: Any) -> NDArray[np.uint8]:
    """The frame that was grabbed last, which OpenCV gives as BGR."""
    there, frame = video.retrieve()
    if not there:
        _unreadable(path, "a damaged frame")
    if max(frame.shape) > MOST_PIXELS:
        raise UsageError(f"{path}: {frame.shape[1]}x{frame.shape[0]} pixels, expected at most {MOST_PIXELS}")
    return np.ascontiguousarray(frame[..., ::-1])


def _unreadable(path: Path, why: str) -> Any:
    raise UsageError(f"{path}: cannot be read as a video ({why}); extract it again")
