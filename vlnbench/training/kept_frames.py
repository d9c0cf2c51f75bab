"""Frames of a set, decoded once and kept in a file that all processes read, for trainings that read them often."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from vlnbench.errors import UsageError
from vlnbench.util.durable.limits import regular
from vlnbench.util.durable.locks import held
from vlnbench.util.machine import cores
from vlnbench.util.progress import Progress

MOST_WORKERS = 16
"""Processes that decode frames at a time; each holds an item or two."""


@dataclass(frozen=True)
class KeptFrames:
    """A file of frames of `size` bytes each, item after item; item i begins at frame `first[i]`."""

    path: Path
    first: tuple[int, ...]
    size: int

    def frames(self, item: int, which: Sequence[int] | slice = slice(None)) -> NDArray[np.uint8]:
        """Frames of an item, by position, or all: (n, size).

        They are read, not mapped: pages of a mapped file count as memory of the process that has looked at them.
        Raises UsageError where the file is gone or ends too early.
        """
        there = range(self.first[item], self.first[item + 1])
        places = there[which] if isinstance(which, slice) else [there[each] for each in which]
        found = np.empty((len(places), self.size), np.uint8)
        try:
            with self.path.open("rb", buffering=0) as file:
                for row, place in zip(found, places, strict=True):
                    file.seek(place * self.size)
                    if file.readinto(row) != self.size:
                        raise UsageError(f"{self.path}: holds fewer than {self.first[-1]:,} frames; delete it")
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be read ({error.strerror}); start the training again"
            ) from error
        return found


def kept_name(file: Path, firsts: Iterable[Path], *facts: object) -> str:
    """A name for the kept frames of the set that `file` describes.

    It is another one for another content of the file, other facts (sizes, versions), and where the first images of
    its items, `firsts`, were written anew. Raises UsageError if one cannot be found.
    """
    digest = hashlib.sha256(f"{file.absolute()} {facts!r}".encode() + regular(file).read_bytes())
    for path in firsts:
        try:
            found = path.stat()
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror}); collect the set again") from error
        digest.update(f" {found.st_size} {found.st_mtime_ns}".encode())
    return f"{file.parent.name}-{digest.hexdigest()[:16]}"


def keep_frames(
    folder: Path,
    name: str,
    counts: Iterable[int],
    size: int,
    decode: Callable[[int], NDArray[Any]],
    encode: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
) -> KeptFrames:
    """The frames of a set in `folder`; where they are not there yet, one process at a time has them decoded.

    name: of the file, by which frames of other content or size have another. counts: frames of each item. decode:
    the frames of an item, called in other processes. encode: what is kept of them, called in this one; None: all.
    Either way that is an array of so many times `size` bytes. Raises UsageError if the folder cannot be written.
    """
    first = tuple(int(each) for each in np.cumsum([0, *counts]))
    kept = KeptFrames(folder / f"{name}.frames", first, size)
    try:
        if not kept.path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with held(kept.path.with_suffix(".lock"), wait=True):
                if not kept.path.exists():
                    _write(kept, decode, encode)
    except OSError as error:
        raise UsageError(f"--packed {folder}: cannot be written ({error.strerror})") from error
    return kept


@dataclass(frozen=True)
class _Decoded(Dataset[NDArray[Any] | UsageError]):
    """The frames of items, decoded, in the processes of a loader."""

    decode: Callable[[int], NDArray[Any]]
    items: int

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, item: int) -> NDArray[Any] | UsageError:
        try:
            return self.decode(item)
        except UsageError as error:  # which would lose its type on the way between processes
            return error


def _loader(decode: Callable[[int], NDArray[Any]], items: int) -> DataLoader[Any]:
    """Gives the frames of all items in order, decoded by some processes where these can be forked.

    Frames come through pipes as they are: as tensors they would go through shared memory, of which containers have
    little.
    """
    decoded, workers = _Decoded(decode, items), min(cores(), MOST_WORKERS, items)
    if workers < 2 or sys.platform != "linux":
        return DataLoader(decoded, batch_size=None, collate_fn=_as_it_is)
    return DataLoader(
        decoded,
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=workers,
        prefetch_factor=1,
        multiprocessing_context="fork",
    )


def _as_it_is(frames: Any) -> Any:
    return frames


def _write(
    kept: KeptFrames,
    decode: Callable[[int], NDArray[Any]],
    encode: Callable[[NDArray[Any]], NDArray[Any]] | None,
) -> None:
    part, items = kept.path.with_suffix(".part"), len(kept.first) - 1
    with part.open("wb") as file, Progress("decoding frames") as progress:
        for item, frames in enumerate(_loader(decode, items)):
            if isinstance(frames, UsageError):
                raise frames
            kept_of = frames if encode is None else encode(frames)
            file.write(np.ascontiguousarray(kept_of).tobytes())
            progress.update(item + 1, items)
    if part.stat().st_size != kept.first[-1] * kept.size:
        raise ValueError(f"{part}: decoded frames are not {kept.size} bytes each")
    os.replace(part, kept.path)
