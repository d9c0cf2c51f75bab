"""Reads the pickle inside a PyTorch checkpoint as plain data, so that nothing which a file names is ever run.

A pickle is a program for a stack machine that may call any function. The machine here knows only the instructions
of checkpoints, and makes six names into data: tensors, their two types of storage, ordered dictionaries, sets and
the configuration class of habitat-lab, which becomes a dictionary. Everything else is refused by name.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from agents.common.checkpoints.archive import MAX_PICKLE
from vlnbench.errors import UsageError

DTYPES = {"torch FloatStorage": "float32", "torch LongStorage": "int64"}
CONFIG = "habitat.config.default Config"
TENSOR = "torch._utils _rebuild_tensor_v2"


@dataclass(frozen=True, slots=True)
class Storage:
    """Numbers elsewhere in the file: under which key, of which type, how many."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that has not been read: where its elements lie in a storage, counted in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise ValueError unless every element lies in the storage and no more are claimed than it holds."""
        numbers = (self.offset, *self.shape, *self.stride)
        if len(self.shape) != len(self.stride) or not all(_is_count(number) for number in numbers):
            raise ValueError("a tensor without a proper shape")
        last = self.offset + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        if self.size > self.storage.count or (self.size and last >= self.storage.count):
            raise ValueError(f"a tensor of shape {list(self.shape)} in a storage of {self.storage.count} numbers")

    @property
    def size(self) -> int:
        """How many elements it has."""
        size = 1
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, slots=True)
class _Name:
    """A global that the pickle named, `module name`."""

    text: str


class _Mark:
    """Where a group of items begins on the stack."""


def read_pickle(stream: IO[bytes], where: str) -> Any:
    """The data of one pickle: dictionaries, lists, tuples, numbers, strings, `Storage` and `StoredTensor`.

    The stream is left behind the pickle. Attributes of dictionaries (`_metadata`, a config's flags) are dropped.
    Raises UsageError, one line that begins with `where`, for damage and for anything but data.
    """
    machine, start = _Machine(where), stream.tell()
    try:
        for instruction, argument, position in pickletools.genops(stream):
            if (position or 0) - start > MAX_PICKLE:
                raise UsageError(f"{where}: a pickle of more than {MAX_PICKLE >> 20} MB is no checkpoint's")
            if instruction.name == "STOP":
                return machine.pop()
            machine.run(instruction.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise UsageError(f"{where}: the pickle is damaged or cut off ({error}); copy the file again") from None
    raise UsageError(f"{where}: the pickle is cut off; copy the file again")


class _Machine:
    def __init__(self, where: str) -> None:
        self._where = where
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def pop(self) -> Any:
        return self._stack.pop()

    def run(self, name: str, argument: Any) -> None:
        if name in _LITERALS:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            self._stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            items = [self.pop() for _ in range(_TUPLES[name])]
            self._stack.append(tuple(reversed(items)))
        else:
            action = _ACTIONS.get(name)
            if action is None:
                raise UsageError(f"{self._where}: the pickle instruction {name} has no place in a checkpoint")
            action(self, argument)

    def mark(self, _: Any) -> None:
        self._stack.append(_Mark())

    def tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._marked()))

    def put(self, place: int) -> None:
        self._memo[place] = self._stack[-1]

    def get(self, place: int) -> None:
        self._stack.append(self._memo[place])

    def name(self, text: str) -> None:
        if text not in _CALLS and text not in DTYPES:
            raise UsageError(
                f"{self._where}: the pickle names {text}, which is neither a tensor nor a setting; nothing was run"
            )
        self._stack.append(_Name(text))

    def call(self, _: Any) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, _Name) or function.text not in _CALLS or type(arguments) is not tuple:
            raise ValueError("a call of what is no function")
        self._stack.append(_CALLS[function.text](*arguments))

    def drop_attributes(self, _: Any) -> None:
        self.pop()
        if not isinstance(self._stack[-1], dict):
            raise ValueError("attributes of what has none")

    def storage(self, _: Any) -> None:
        kind, dtype, key, _device, count, *view = self.pop()
        known = kind == "storage" and isinstance(dtype, _Name) and dtype.text in DTYPES and isinstance(key, str)
        if not known or not _is_count(count) or view not in ([], [None]):
            raise ValueError("a storage of an unknown kind")
        self._stack.append(Storage(key, DTYPES[dtype.text], count))

    def set_item(self, _: Any) -> None:
        value, key = self.pop(), self.pop()
        self._fill([key, value])

    def set_items(self, _: Any) -> None:
        self._fill(self._marked())

    def append(self, _: Any) -> None:
        self._extend([self.pop()])

    def extend(self, _: Any) -> None:
        self._extend(self._marked())

    def _fill(self, items: list[Any]) -> None:
        keys, values = items[::2], items[1::2]
        if not isinstance(self._stack[-1], dict) or not all(isinstance(key, str | int) for key in keys):
            raise ValueError("entries of what is no dictionary of names")
        self._stack[-1].update(zip(keys, values, strict=True))

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise ValueError("items of what is no list")
        self._stack[-1].extend(items)

    def _marked(self) -> list[Any]:
        items: list[Any] = []
        while not isinstance(item := self.pop(), _Mark):
            items.append(item)
        return items[::-1]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> StoredTensor:
    if not isinstance(storage, Storage):
        raise ValueError("a tensor without a storage")
    return StoredTensor(storage, offset, tuple(shape), tuple(stride))


def _empty() -> dict[Any, Any]:
    return {}


def _set(items: Any) -> list[Any]:
    if not isinstance(items, list):
        raise ValueError("a set of what is no list")
    return items


_CALLS: dict[str, Callable[..., Any]] = {
    TENSOR: _tensor,
    CONFIG: _empty,
    "collections OrderedDict": _empty,
    "__builtin__ set": _set,
}
_LITERALS = frozenset(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"))
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, version: None,
    "MARK": _Machine.mark,
    "TUPLE": _Machine.tuple,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "GLOBAL": _Machine.name,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "BUILD": _Machine.drop_attributes,
    "BINPERSID": _Machine.storage,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.extend,
}
