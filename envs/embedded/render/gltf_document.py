"""Container and JSON of a binary glTF 2.0 file, with typed look-ups that name the offending field.

Source: Khronos glTF 2.0 specification, sections 3 (concepts), 4 (GLB container) and 5 (properties).
"""

from __future__ import annotations

import json
import math
import reprlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from envs.embedded import limits
from vlnbench.errors import UsageError

SUPPORTED_EXTENSIONS = frozenset({"KHR_materials_unlit", "KHR_texture_transform", "KHR_mesh_quantization"})
_MAGIC, _JSON_CHUNK, _BIN_CHUNK = 0x46546C67, 0x4E4F534A, 0x004E4942
_COMPONENTS = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
_WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4}
_INTEGER_LIMIT = 2**53


@dataclass(frozen=True)
class Document:
    """A parsed `.glb`: its JSON object and its binary chunk. Every look-up checks type and range.

    All methods raise `UsageError` with one line: file, field, what is wrong.
    """

    path: Path
    root: dict[str, Any]
    binary: memoryview
    size: int
    """Bytes of the file."""

    def fail(self, where: str, problem: str) -> NoReturn:
        raise UsageError(f"{self.path}: {where}: {problem}")

    def get(self, owner: dict[str, Any], key: str, kind: type, where: str, default: Any = None) -> Any:
        """`owner[key]` checked to be a `kind`, or `default` where the key is absent."""
        if key not in owner:
            return default
        value = owner[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.fail(f"{where}.{key}", f"expected {_JSON_NAMES[kind]}, found {short(value)}")
        return value

    def integer(self, owner: dict[str, Any], key: str, where: str, default: int | None = None) -> int:
        """A non-negative integer; required where `default` is None."""
        value = self.get(owner, key, int, where, default)
        if value is None:
            self.fail(f"{where}.{key}", "is missing")
        if not 0 <= value < _INTEGER_LIMIT:
            self.fail(f"{where}.{key}", f"expected a non-negative integer, found {short(value)}")
        return int(value)

    def numbers(self, owner: dict[str, Any], key: str, where: str, default: list[float]) -> list[float]:
        """A list of finite numbers as long as `default`."""
        value = self.get(owner, key, list, where, default)
        numeric = [x for x in value if isinstance(x, int | float) and not isinstance(x, bool)]
        if len(value) != len(default) or len(numeric) != len(value) or not all(map(_is_finite, numeric)):
            self.fail(f"{where}.{key}", f"expected {len(default)} finite numbers, found {short(value)}")
        return [float(x) for x in value]

    def item(self, kind: str, index: int, where: str) -> dict[str, Any]:
        """Object number `index` of the top-level list `kind` ("meshes", "accessors", ...)."""
        items = self.get(self.root, kind, list, "glTF", [])
        if index >= len(items):
            self.fail(where, f"index {index} is out of range, the file has {len(items)} {kind}")
        if not isinstance(items[index], dict):
            self.fail(f"{kind}[{index}]", f"expected an object, found {short(items[index])}")
        item: dict[str, Any] = items[index]
        return item

    def view(self, index: int, where: str) -> tuple[memoryview, int]:
        """Bytes and stride (0 = tightly packed) of a bufferView."""
        view = self.item("bufferViews", index, where)
        name = f"bufferViews[{index}]"
        for extension in ("EXT_meshopt_compression", "KHR_meshopt_compression"):
            if extension in self.get(view, "extensions", dict, name, {}):
                self.fail(f"{name}.extensions", f"{extension} is not supported; export without mesh compression")
        buffer_index = self.integer(view, "buffer", name)
        buffer = self.item("buffers", buffer_index, f"{name}.buffer")
        if buffer_index != 0 or "uri" in buffer:
            self.fail(f"buffers[{buffer_index}]", "only the buffer inside the .glb is supported; embed it")
        size = min(self.integer(buffer, "byteLength", "buffers[0]"), len(self.binary))
        offset, length = self.integer(view, "byteOffset", name, 0), self.integer(view, "byteLength", name)
        if offset + length > size:
            self.fail(name, f"ends at byte {offset + length}, the binary chunk has {size} (truncated file?)")
        return self.binary[offset : offset + length], self.integer(view, "byteStride", name, 0)

    def accessor(self, index: int, where: str, widths: tuple[int, ...]) -> NDArray[Any]:
        """(count, width) view of an accessor's elements in their stored type, not yet normalized."""
        accessor = self.item("accessors", index, where)
        name = f"accessors[{index}]"
        if "sparse" in accessor:
            self.fail(f"{name}.sparse", "sparse accessors are not supported")
        component = self.integer(accessor, "componentType", name)
        width = _WIDTHS.get(self.get(accessor, "type", str, name, ""), 0)
        if component not in _COMPONENTS or width not in widths:
            kind = f"componentType {component}, type {short(accessor.get('type'))}"
            self.fail(name, f"cannot be used for {where} ({kind})")
        count = self.integer(accessor, "count", name)
        data, stride = self.view(self.integer(accessor, "bufferView", name), f"{name}.bufferView")
        dtype = np.dtype(_COMPONENTS[component])
        element = dtype.itemsize * width
        stride = stride or element
        offset = self.integer(accessor, "byteOffset", name, 0)
        if stride < element:
            self.fail(name, f"byteStride {stride} is smaller than its elements of {element} bytes")
        if count and offset + stride * (count - 1) + element > len(data):
            self.fail(name, f"{count} elements do not fit its bufferView of {len(data)} bytes")
        strides = (stride, dtype.itemsize)
        return np.ndarray((count, width), dtype, data, offset if count else 0, strides)

    def floats(self, index: int, where: str, widths: tuple[int, ...]) -> NDArray[np.float32]:
        """An accessor as (count, width) float32, integers scaled if the accessor is `normalized`."""
        raw = self.accessor(index, where, widths)
        values = raw.astype(np.float32)
        flags = self.item("accessors", index, where)
        if raw.dtype.kind != "f" and self.get(flags, "normalized", bool, f"accessors[{index}]", False):
            values = np.maximum(values / np.float32(np.iinfo(raw.dtype).max), np.float32(-1))
        if not np.isfinite(values).all():
            self.fail(f"accessors[{index}] ({where})", "contains NaN or infinite values")
        return values


_JSON_NAMES = {
    int: "an integer",
    str: "a string",
    list: "a list",
    dict: "an object",
    bool: "true or false",
    float: "a number",
}


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of a double
        return False


def short(value: Any) -> str:
    """A value as it may stand in an error line, whatever its size and depth."""
    text = reprlib.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_document(path: Path) -> Document:
    """Open a `.glb` file (glTF 2.0, binary container).

    Raises:
        UsageError: missing or truncated file, not a GLB, wrong version, broken JSON, unsupported extension.
    """
    if not path.is_file():
        raise UsageError(f"{path}: scene file not found")
    if path.stat().st_size > limits.MAX_GLB_BYTES:
        raise UsageError(f"{path}: header: longer than the {limits.MAX_GLB_BYTES} bytes that a .glb can have")
    data = path.read_bytes()
    document = Document(path, *_chunks(path, data), len(data))
    if "asset" not in document.root:
        document.fail("glTF.asset", "is missing; not a glTF document")
    version = document.get(document.get(document.root, "asset", dict, "glTF"), "version", str, "asset", "")
    if not version.startswith("2."):
        document.fail("asset.version", f"expected glTF 2.x, found {short(version)}")
    for name in document.get(document.root, "extensionsRequired", list, "glTF", []):
        if not isinstance(name, str) or name not in SUPPORTED_EXTENSIONS:
            document.fail("extensionsRequired", f"{short(name)} is not supported; convert to plain glTF 2.0")
    return document


def _chunks(path: Path, data: bytes) -> tuple[dict[str, Any], memoryview]:
    if len(data) < 20 or struct.unpack_from("<I", data)[0] != _MAGIC:
        raise UsageError(f"{path}: header: not a binary glTF file (.glb)")
    version, length = struct.unpack_from("<II", data, 4)
    if version != 2:
        raise UsageError(f"{path}: header: expected glTF container version 2, found {version}")
    if length > len(data):
        raise UsageError(f"{path}: header: truncated, {len(data)} of {length} bytes")
    found: dict[int, memoryview] = {}
    offset = 12
    for _ in range(limits.MAX_GLB_CHUNKS):
        if offset + 8 > length:
            break
        size, kind = struct.unpack_from("<II", data, offset)
        if offset + 8 + size > length:
            raise UsageError(f"{path}: chunk at byte {offset}: {size} bytes do not fit the file")
        found.setdefault(kind, memoryview(data)[offset + 8 : offset + 8 + size])
        offset += 8 + size
    return _json(path, bytes(found.get(_JSON_CHUNK, b""))), found.get(_BIN_CHUNK, memoryview(b""))


def _json(path: Path, text: bytes) -> dict[str, Any]:
    if len(text) > limits.MAX_JSON_BYTES:
        raise UsageError(f"{path}: JSON chunk: {len(text)} bytes, more than {limits.MAX_JSON_BYTES}")
    values = text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > limits.MAX_JSON_VALUES:
        raise UsageError(f"{path}: JSON chunk: about {values} values, more than {limits.MAX_JSON_VALUES}")
    try:
        root = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: JSON chunk: {str(error).splitlines()[0]}") from None
    if not isinstance(root, dict):
        raise UsageError(f"{path}: JSON chunk: expected an object")
    return root
