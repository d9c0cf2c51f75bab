"""Features that a frozen part makes of frames, on disk, so that it sees every frame once (`--feature-cache`).

That part is called the tower here. The folder has one folder per fingerprint (the tower's weights and all else
that features depend on) and in it one file per frame, named by the hash of its image file. Features are what the
tower makes of one image at a time, on a GPU of `ON_GPU` at a time, of which some may be black: the same kernels
whatever the batch is, so a run with a warm cache, a cold one or one that lost half its files is the same run.
Without a cache frames are encoded together, which may differ in the last digit.

Nothing is evicted: an epoch sees every frame about equally often, so those that are kept are worth as much as any
others, and where not all fit, replacing them would lose every one just before its turn. A folder that is full
stays as it is; delete it, or the folders of other fingerprints in it, to make room.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlnbench.errors import UsageError
from vlnbench.training.family.trains import Features
from vlnbench.training.options import TrainOptions
from vlnbench.training.setup import Process, barrier
from vlnbench.util.durable.locks import LOCK, locked
from vlnbench.util.progress import say

COUNT, PART = "features.bytes", ".part"
_BLOCK = 4096
"""Files are counted in whole blocks, as file systems give them away."""
_CHECKSUM = 4
ON_GPU = 16
"""Frames that a GPU encodes in one pass: enough that it computes for longer than a launch takes."""


class FeatureStore:
    """Tensors of one shape and dtype by key, in a folder that any number of processes read and write at once.

    A first size of -1 is any number of rows.

    A file ends with the CRC-32 of what is before it and gets its name when it is complete. `COUNT` holds how many
    bytes the files of all fingerprints take; the folder is locked while a file is added, and the count is raised
    before that, so that a process killed at any moment leaves it too high, never too low. `open` counts anew.
    """

    def __init__(
        self, root: Path, fingerprint: str, limit: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self._root = root
        self._folder = root / fingerprint
        self._limit = limit
        self._shape = shape
        self._dtype = dtype
        self._bytes = abs(math.prod(shape)) * dtype.itemsize  # of one row where their number is open
        self.closed: str | None = None
        """Why nothing more is added, if so."""

    def open(self) -> str:
        """Make the folder, remove what killed processes left and count what is there; returns a line about it.

        One that can only be read is read. Raises UsageError if the folder holds something else or cannot be made.
        """
        closed = ""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if any(each.name != LOCK for each in self._root.iterdir()) and not (self._root / COUNT).exists():
                raise UsageError(
                    f"--feature-cache {self._root}: not empty and not a feature cache; choose another"
                )
            with self._counting() as count:
                total, own = self._there(remove=True)
                _write_count(count, total)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS) or not (self._root / COUNT).exists():
                raise UsageError(
                    f"--feature-cache {self._root}: cannot be used as a folder for features ({error.strerror})"
                ) from error
            total, own = self._there()
            self.closed = f"it cannot be written ({error.strerror})"
            closed = f"; nothing is added: {self.closed}"
        return (
            f"feature cache {self._root}: {own:,} frames of this tower, "
            f"{total / 1e9:.2f} of {self._limit / 1e9:g} GB taken{closed}"
        )

    def _there(self, remove: bool = False) -> tuple[int, int]:
        """Bytes that all files take, and how many files this fingerprint has. remove: those half written."""
        total = own = 0
        for path in self._root.glob("*/*/*"):
            if path.suffix != PART:
                total += _blocks(path.stat().st_size)
                own += path.is_relative_to(self._folder)
            elif remove:
                path.unlink()
        return total, own

    def get(self, key: str) -> Tensor | None:
        """What was put under a key; None of a file that cannot be read. One that is damaged is removed."""
        path = self._path(key)
        try:
            content = bytearray(path.read_bytes())
        except OSError:
            return None
        payload = memoryview(content)[:-_CHECKSUM]
        if (
            not self._fits(len(payload))
            or zlib.crc32(payload).to_bytes(_CHECKSUM, "little") != content[-_CHECKSUM:]
        ):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        count = len(payload) // self._dtype.itemsize
        return torch.frombuffer(content, dtype=self._dtype, count=count).view(self._shape)

    def _fits(self, size: int) -> bool:
        """Whether a tensor of the store's shape may have so many bytes."""
        return size % self._bytes == 0 and size > 0 if self._shape[0] == -1 else size == self._bytes

    def put(self, key: str, tensor: Tensor) -> None:
        """Add a tensor, unless its file would not fit or cannot be written; then the store is closed."""
        if self.closed:
            return
        payload = tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        content = payload + zlib.crc32(payload).to_bytes(_CHECKSUM, "little")
        path = self._path(key)
        part = path.with_suffix(PART)
        try:
            with self._counting() as count:
                if path.exists():  # another process was faster
                    return
                total = int.from_bytes(os.pread(count, 8, 0), "little") + _blocks(len(content))
                if total > self._limit:
                    self.closed = "it is full"
                    return
                _write_count(count, total)
                path.parent.mkdir(parents=True, exist_ok=True)
                part.write_bytes(content)
                os.replace(part, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            self.closed = f"it cannot be written ({error.strerror})"

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / key[2:]

    @contextlib.contextmanager
    def _counting(self) -> Iterator[int]:
        """Descriptor of the count, which no other process touches meanwhile."""
        with locked(self._root, wait=True):
            file = os.open(self._root / COUNT, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                yield file
            finally:
                os.close(file)


class CachedTower:
    """A frozen tower and the store of its features; `entry` is the one of a batch that holds its frames."""

    def __init__(self, tower: torch.nn.Module, made: Features, store: FeatureStore, process: Process) -> None:
        self._tower = tower
        self._store = store
        self._process = process
        self._dtype = made.dtype
        self._encode = made.encode
        self._together = together(process.device)
        self.entry, self.phase = made.entry, made.phase
        self._found = self._frames = 0
        self._total = torch.zeros(2, dtype=torch.int64)

    def known(self, key: str) -> Tensor | None:
        """Features (patches, width) of a frame if they are kept."""
        return self._store.get(key)

    def features(self, frames: Any) -> list[Tensor]:
        """Patch features (n, patches, width) of every sample of a batch; frames that are not kept are encoded."""
        stacked = frames.known.to(self._process.device)
        encoded = self._look_up(frames.keys, frames.pixels)
        self._frames += len(frames.known) + len(encoded)
        self._found += len(frames.known)
        if encoded:
            fresh = torch.stack(encoded)
            stacked = torch.cat([stacked, fresh]) if len(frames.known) else fresh
        return [stacked[order] for order in frames.order]

    def count(self) -> dict[str, int]:
        """Frames found and frames asked for by all ranks since the last call; a frame counts once per batch."""
        counts = torch.tensor([self._found, self._frames], device=self._process.device)
        self._found = self._frames = 0
        if self._process.world_size > 1:
            torch.distributed.all_reduce(counts)
        self._total += counts.cpu()
        found, frames = counts.tolist()
        return {"found": found, "frames": frames}

    def describe(self) -> str:
        """How often features were found up to the last `count`, in one line."""
        found, frames = self._total.tolist()
        why = f"; nothing more is added: {self._store.closed}" if self._store.closed else ""
        name = f" of {self.phase}" if self.phase else ""
        return f"feature cache{name}: {found:,} of {frames:,} frames found ({found / max(1, frames):.1%}){why}"

    def _look_up(self, keys: Sequence[str], pixels: Sequence[Tensor]) -> list[Tensor]:
        """Features of frames that were not kept when their batch was made, but may be by now."""
        device, found = self._process.device, {}
        missing: dict[torch.Size, list[int]] = {}
        for i, key in enumerate(keys):
            if (kept := self._store.get(key)) is None:
                missing.setdefault(pixels[i].shape, []).append(i)
            else:
                self._found += 1
                found[i] = kept.to(device)
        for alike in missing.values():
            for begin in range(0, len(alike), self._together):
                some = alike[begin : begin + self._together]
                encoded = self._encoded(torch.stack([pixels[i] for i in some]))
                for i, own, kept in zip(some, encoded, encoded.cpu(), strict=True):
                    self._store.put(keys[i], kept)
                    found[i] = own
        return [found[i] for i in range(len(keys))]

    def _encoded(self, pixels: Tensor) -> Tensor:
        """Of as many frames as are encoded together, or fewer, to which black ones are added."""
        count = len(pixels)
        placed = pixels.to(self._process.device, self._dtype)
        if count < self._together:
            placed = torch.cat([placed, placed.new_zeros(self._together - count, *placed.shape[1:])])
        with torch.no_grad():
            return self._encode(self._tower, placed)[:count]


def open_cache(options: TrainOptions, made: Features, process: Process) -> CachedTower:
    """The tower with a cache before it. To be called before DeepSpeed takes the model.

    ZeRO 3 takes parameters apart and puts them together when all ranks run a layer at the same time; ranks miss
    different frames, so there the tower runs as a copy, whole on every device.
    """
    assert options.feature_cache is not None
    limit = int(options.feature_cache_gb * 1e9)
    count = together(process.device)
    fingerprint = made.fingerprint if count == 1 else f"{made.fingerprint}-{count}"
    store = FeatureStore(options.feature_cache, fingerprint, limit, made.shape, made.dtype)
    if process.local_rank == 0:
        line = store.open()
        if process.first:
            say(line)
    barrier(process)
    tower = copy.deepcopy(made.tower).to(process.device) if options.zero == 3 else made.tower
    return CachedTower(tower, made, store, process)


def together(device: torch.device) -> int:
    """How many frames are encoded in one pass: on a GPU always as many, so that kernels and bits are the same."""
    return ON_GPU if device.type == "cuda" else 1


def _blocks(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _write_count(file: int, count: int) -> None:
    os.pwrite(file, count.to_bytes(8, "little"), 0)
