"""Reads PyTorch's own files (.pth, .bin): tensors and settings, never code, never more than is there."""

from __future__ import annotations

import io
import pickletools
import re
import warnings
import zipfile
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlnbench.errors import UsageError
from vlnbench.util.durable.limits import regular
from vlnbench.util.hub import fetched

MAX_PICKLE = 8 << 20
"""Bytes of a checkpoint's pickle, which holds names and settings, about 0.3 MB."""
_PICKLES = 5
"""Magic number, version, sizes of numbers, content, and names of storages."""
LONGEST = 120
"""Characters of what a file or a library says, in a message."""


def reason(text: object) -> str:
    """What a library says, in one line that is not long."""
    return ascii(" ".join(str(text).split()))[1:-1][:LONGEST]


def read_pickled(path: Path, settings: Sequence[str] = (), checksums: bool = False) -> Any:
    """What torch.save wrote: tensors on the CPU in dictionaries, lists and tuples with numbers and strings.

    settings: classes, by `module.name`, whose objects are read as the dictionaries that they are; attributes are
    dropped. checksums: read the members of a zip archive first, so that changed numbers are noticed. Its tensors
    are views of the file: copy what outlives it. Raises UsageError, one line, for files that are damaged, that
    name anything but tensors and `settings`, or that claim more bytes than they have.
    """
    try:
        with fetched(regular(path)).open("rb") as file:
            content = file.read(MAX_PICKLE)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); expected a file of PyTorch") from None
    zipped = content.startswith(b"PK")
    try:
        if zipped:
            _check_archive(path, checksums)
        else:
            _check_pickles(path, content)
        # A habitat-lab node is a dictionary with attributes, as an OrderedDict is, which is all that torch fills.
        known = torch.serialization.safe_globals([(OrderedDict, name) for name in settings])
        with warnings.catch_warnings(), known:
            warnings.simplefilter("ignore")  # unusual files are read or refused in any case
            content = torch.load(path, map_location=_Storages(path, zipped), weights_only=True, mmap=zipped)
        tensors = list(_tensors_in(content))
    except UsageError:
        raise
    except Exception as error:  # torch raises a dozen kinds for damage and for forbidden content
        if named := re.search(r"GLOBAL (\S+)", str(error)):
            line = f"the pickle names {reason(named[1])}, which is neither a tensor nor a setting; nothing was run"
            raise UsageError(f"{path}: {line}") from None
        raise UsageError(f"{path} cannot be read as weights, it is damaged or cut off: {reason(error)}") from None
    if not all(_is_plain(each) for each in tensors):
        raise UsageError(f"{path}: expected plain tensors")
    if sum(each.numel() * each.element_size() for each in tensors) > path.stat().st_size:
        raise UsageError(f"{path}: its tensors claim more bytes than the file has")
    return content


class _Storages:
    """Where torch puts the numbers that a file claims to have: nowhere, once they are more than the file.

    Of the layout of before torch 1.6 torch would make a storage as long as the pickle says, and longer where a
    tensor claims more. Memory of Python's cannot grow.
    """

    def __init__(self, path: Path, zipped: bool) -> None:
        self._path, self._zipped, self._left = path, zipped, path.stat().st_size

    def __call__(self, storage: Any, location: str) -> Any:
        size = storage.nbytes()
        self._left -= size
        if self._left < 0:
            raise UsageError(f"{self._path}: its storages claim more bytes than the file has")
        if self._zipped or size == 0:
            return storage
        return torch.frombuffer(bytearray(size), dtype=torch.uint8).untyped_storage()


def _check_archive(path: Path, checksums: bool) -> None:
    """Refuse what could unpack to more than the file: PyTorch stores its members as they are."""
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            limit = MAX_PICKLE if info.filename.endswith("data.pkl") else size
            if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit or info.flag_bits & 1:
                line = "is packed or longer than a checkpoint's; torch.save writes none such"
                raise UsageError(f"{path}: {reason(info.filename)} {line}")
        if sum(info.file_size for info in archive.infolist()) > size:
            raise UsageError(f"{path}: its members claim more bytes than the file has")
        if checksums and (damaged := archive.testzip()) is not None:
            raise UsageError(f"{path} is damaged at {reason(damaged)}; copy it again")


def _check_pickles(path: Path, begin: bytes) -> None:
    """Refuse a file of before torch 1.6 whose pickles, which lie before its numbers, do not end within `begin`.

    A number in a pickle takes two bytes there, and sixteen and more in memory.
    """
    read = io.BytesIO(begin)
    try:
        for _ in range(_PICKLES):
            deque(pickletools.genops(read), maxlen=0)
    except ValueError:  # if they are damaged, torch says so
        if read.tell() == MAX_PICKLE:
            raise UsageError(
                f"{path}: its pickle is longer than a checkpoint's; torch.save writes none such"
            ) from None


def _tensors_in(content: Any) -> Iterator[Tensor]:
    """All tensors in nested data, each container looked into once; attributes, which could hide methods, go."""
    waiting, seen = [content], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, OrderedDict):
                vars(value).clear()
            waiting.extend(dict.values(value) if isinstance(value, dict) else value)


def _is_plain(tensor: Tensor) -> bool:
    kind = type(tensor)
    return kind in (Tensor, nn.Parameter) and tensor.layout is torch.strided and tensor.device.type == "cpu"
