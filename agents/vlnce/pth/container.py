"""Opens the two containers of PyTorch checkpoints: a zip archive, and five pickles in a row before torch 1.6."""

from __future__ import annotations

import io
import mmap
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agents.common.checkpoints.archive import check_members
from agents.vlnce.pth.pickles import Storage, StoredTensor, read_pickle
from vlnbench.errors import UsageError
from vlnbench.util.durable.limits import regular

LEGACY_MAGIC, LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
ITEM_BYTES = {"float32": 4, "int64": 8}
TORCH_DTYPES = {"float32": torch.float32, "int64": torch.int64}

ReadBytes = Callable[[Storage], bytes]

_DAMAGE = (
    zipfile.BadZipFile,
    struct.error,
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    OverflowError,
)
"""What Python's zip reader raises for files that are not as they say."""


class Container:
    """A checkpoint file whose pickle has been read; tensors are read one at a time.

    `content` is the pickle's data, in which tensors are `StoredTensor`s.
    """

    def __init__(self, path: Path, content: Any, read_bytes: ReadBytes) -> None:
        self.path = path
        self.content = content
        self._read_bytes = read_bytes

    def tensor(self, stored: StoredTensor) -> Tensor:
        """One tensor, contiguous and in memory of its own. Raises UsageError where the file does not hold it."""
        if stored.size == 0:
            return torch.empty(stored.shape, dtype=TORCH_DTYPES[stored.storage.dtype])
        data = bytearray(self._read_bytes(stored.storage))
        numbers = torch.frombuffer(data, dtype=TORCH_DTYPES[stored.storage.dtype])
        return numbers.as_strided(stored.shape, stored.stride, stored.offset).clone(
            memory_format=torch.contiguous_format
        )


@contextmanager
def open_container(path: Path) -> Iterator[Container]:
    """Open a checkpoint file; nothing in it is run, and tensors are read when they are asked for.

    Raises UsageError, one line, for files that are no PyTorch checkpoint, that are damaged or cut off, that name
    anything but tensors and settings, or whose parts claim more bytes than the file has.
    """
    try:
        with regular(path).open("rb") as file:
            head = file.read(2)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); expected a VLN-CE checkpoint (.pth)"
        ) from None
    if head not in (b"PK", b"\x80\x02"):
        raise UsageError(f"{path}: not a PyTorch checkpoint (.pth), neither of the old layout nor of the new one")
    with ExitStack() as opened:
        yield _open_zip(path, opened) if head == b"PK" else _open_legacy(path, opened)


def _open_zip(path: Path, opened: ExitStack) -> Container:
    try:
        archive = opened.enter_context(zipfile.ZipFile(path))
        members = {info.filename: info for info in archive.infolist()}
        check_members(path, members)
        pickles = [name for name in members if name.rpartition("/")[2] == "data.pkl"]
        if len(pickles) != 1:
            raise UsageError(f"{path}: a zip file, but no PyTorch checkpoint: it has {len(pickles)} data.pkl")
        folder = pickles[0].removesuffix("data.pkl")
        byteorder = members.get(folder + "byteorder")
        if byteorder is not None and archive.read(byteorder) != b"little":
            raise UsageError(f"{path}: written on a big-endian machine, which is not supported")
        content = read_pickle(io.BytesIO(archive.read(pickles[0])), str(path))
    except _DAMAGE as error:
        raise UsageError(f"{path} is damaged or cut off ({error}); copy it again") from None

    def read_bytes(storage: Storage) -> bytes:
        info = members.get(f"{folder}data/{storage.key}")
        if info is None or info.file_size != storage.count * ITEM_BYTES[storage.dtype]:
            raise UsageError(
                f"{path} is damaged: data/{storage.key} is absent or of another length; copy it again"
            )
        try:
            return archive.read(info)
        except _DAMAGE as error:
            raise UsageError(f"{path} is damaged (data/{storage.key}: {error}); copy it again") from None

    return Container(path, content, read_bytes)


def _open_legacy(path: Path, opened: ExitStack) -> Container:
    # A map of the file, unlike the file, never sets aside more memory for a string than there are bytes left.
    file = opened.enter_context(path.open("rb"))
    view = opened.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    stream: Any = view
    magic, protocol, system = (read_pickle(stream, str(path)) for _ in range(3))
    if magic != LEGACY_MAGIC or protocol != LEGACY_PROTOCOL:
        raise UsageError(f"{path}: a pickle, but no PyTorch checkpoint")
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise UsageError(f"{path}: written on a big-endian machine, which is not supported")
    content, keys = read_pickle(stream, str(path)), read_pickle(stream, str(path))
    places = _legacy_places(path, view, keys, content)

    def read_bytes(storage: Storage) -> bytes:
        start, count = places.get(storage.key, (0, -1))
        if count != storage.count:
            raise UsageError(f"{path} is damaged: storage {storage.key} is absent or of another length")
        return view[start : start + count * ITEM_BYTES[storage.dtype]]

    return Container(path, content, read_bytes)


def _legacy_places(path: Path, view: mmap.mmap, keys: Any, content: Any) -> dict[str, tuple[int, int]]:
    """Where in the file each storage begins and how many numbers it has; they follow in the order of `keys`."""
    storages = {tensor.storage.key: tensor.storage for tensor in _tensors_in(content)}
    places: dict[str, tuple[int, int]] = {}
    position = view.tell()
    for key in keys if isinstance(keys, list) else ():
        if key not in storages or position + 8 > len(view):
            raise UsageError(f"{path} is damaged or cut off at storage {key}; copy it again")
        (count,) = struct.unpack_from("<q", view, position)
        position += 8
        places[key] = (position, count)
        position += count * ITEM_BYTES[storages[key].dtype]
        if count < 0 or position > len(view):
            raise UsageError(f"{path} is damaged or cut off at storage {key}; copy it again")
    return places


def _tensors_in(content: Any) -> list[StoredTensor]:
    """All tensors in nested data, each container looked into once."""
    found, waiting, seen = [], [content], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, StoredTensor):
            found.append(value)
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(value.values() if isinstance(value, dict) else value)
    return found
