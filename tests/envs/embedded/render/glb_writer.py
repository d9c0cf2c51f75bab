"""Writes tiny binary glTF files for fixtures."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_COMPONENTS = {"b": 5120, "B": 5121, "h": 5122, "H": 5123, "I": 5125, "f": 5126}
_TYPES = {1: "SCALAR", 2: "VEC2", 3: "VEC3", 4: "VEC4"}


class GlbWriter:
    """Collects buffers; `root` is the JSON object and may be edited before `save`."""

    def __init__(self) -> None:
        self.binary = bytearray()
        self.root: dict[str, Any] = {
            "asset": {"version": "2.0"},
            "scenes": [{"nodes": []}],
            "nodes": [],
            "meshes": [],
            "accessors": [],
            "bufferViews": [],
        }

    def view(self, data: bytes, **fields: Any) -> int:
        self.binary += bytes(-len(self.binary) % 4)
        return self._add(
            "bufferViews", {"buffer": 0, "byteOffset": len(self.binary), "byteLength": len(data), **fields}, data
        )

    def accessor(self, array: NDArray[Any], **fields: Any) -> int:
        array = np.ascontiguousarray(array)
        width = array.shape[1] if array.ndim > 1 else 1
        return self._add(
            "accessors",
            {
                "bufferView": self.view(array.tobytes()),
                "componentType": _COMPONENTS[array.dtype.char],
                "count": len(array),
                "type": _TYPES[width],
                **fields,
            },
        )

    def material(
        self, pixels: NDArray[np.uint8] | None = None, factor: Any = None, kind: str = "PNG", **sampler: int
    ) -> int:
        surface: dict[str, Any] = {}
        if factor is not None:
            surface["baseColorFactor"] = list(factor)
        if pixels is not None:
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, kind)
            image = {"bufferView": self.view(file.getvalue()), "mimeType": f"image/{kind.lower()}"}
            texture = {"source": self._add("images", image)}
            if sampler:
                texture["sampler"] = self._add("samplers", sampler)
            surface["baseColorTexture"] = {"index": self._add("textures", texture)}
        return self._add("materials", {"pbrMetallicRoughness": surface})

    def mesh(
        self, positions: Any, indices: Any = None, node: dict[str, Any] | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Add a node with a mesh of one primitive and return the primitive's JSON.

        `fields` may be `uvs`, `colors` (arrays), `material`, `mode`.
        """
        attributes = {"POSITION": self.accessor(np.asarray(positions, np.float32))}
        for name, key in (("TEXCOORD_0", "uvs"), ("COLOR_0", "colors")):
            if key in fields:
                array = fields.pop(key)
                attributes[name] = self.accessor(array, normalized=array.dtype.kind != "f")
        primitive: dict[str, Any] = {"attributes": attributes, **fields}
        if indices is not None:
            primitive["indices"] = self.accessor(np.asarray(indices).ravel())
        mesh = self._add("meshes", {"primitives": [primitive]})
        self.root["scenes"][0]["nodes"].append(self._add("nodes", {"mesh": mesh, **(node or {})}))
        return primitive

    def to_bytes(self) -> bytes:
        root = {**self.root, "buffers": [{"byteLength": len(self.binary)}]}
        text = json.dumps(root).encode()
        text += b" " * (-len(text) % 4)
        binary = bytes(self.binary) + bytes(-len(self.binary) % 4)
        chunks = struct.pack("<II", len(text), 0x4E4F534A) + text
        chunks += struct.pack("<II", len(binary), 0x004E4942) + binary
        return struct.pack("<III", 0x46546C67, 2, 12 + len(chunks)) + chunks

    def save(self, path: Path) -> Path:
        path.write_bytes(self.to_bytes())
        return path

    def _add(self, kind: str, entry: dict[str, Any], data: bytes = b"") -> int:
        self.binary += data
        self.root.setdefault(kind, []).append(entry)
        return len(self.root[kind]) - 1


def quad(x: float = 1.0, y: float = 1.0) -> tuple[NDArray[np.float32], NDArray[np.uint16], NDArray[np.float32]]:
    """Positions, indices and texture coordinates of a 2x by 2y rectangle that faces +z; v = 0 at the top."""
    positions = np.array([[-x, -y, 0], [x, -y, 0], [x, y, 0], [-x, y, 0]], np.float32)
    uvs = np.array([[0, 1], [1, 1], [1, 0], [0, 0]], np.float32)
    return positions, np.array([0, 1, 2, 0, 2, 3], np.uint16), uvs
