"""Minimal deterministic writer of binary glTF 2.0: unlit textured primitives below one node."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FLOAT, _UINT8, _UINT16, _UINT32 = 5126, 5121, 5123, 5125
_ARRAY_BUFFER, _ELEMENT_BUFFER = 34962, 34963
_REPEAT, _LINEAR, _LINEAR_MIPMAP_LINEAR = 10497, 9729, 9987


@dataclass(frozen=True, eq=False)
class Primitive:
    """Triangles sharing one texture, in world coordinates (y up, meters).

    positions: float32 (n, 3). uv: float32 (n, 2), v down from the top of the image. colors: uint8 (n, 3), factors
    of 255 for the texture. triangles: uint32 (m, 3). png: the encoded image.
    """

    name: str
    positions: NDArray[np.float32]
    uv: NDArray[np.float32]
    colors: NDArray[np.uint8]
    triangles: NDArray[np.uint32]
    png: bytes


def glb_bytes(primitives: Sequence[Primitive], generator: str) -> bytes:
    """A .glb in the frame of a bare Matterport file (z up): file (x, y, z) = world (x, -z, y).

    Follows the Khronos glTF 2.0 specification with KHR_materials_unlit.
    """
    document: dict[str, Any] = {
        "asset": {"version": "2.0", "generator": generator},
        "extensionsUsed": ["KHR_materials_unlit"],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0, "name": "house"}],
        "meshes": [{"name": "house", "primitives": []}],
        "materials": [],
        "textures": [],
        "images": [],
        "samplers": [
            {"magFilter": _LINEAR, "minFilter": _LINEAR_MIPMAP_LINEAR, "wrapS": _REPEAT, "wrapT": _REPEAT}
        ],
        "accessors": [],
        "bufferViews": [],
        "buffers": [],
    }
    binary = bytearray()
    images: dict[bytes, int] = {}
    for primitive in primitives:
        if primitive.png not in images:
            images[primitive.png] = _add_material(document, binary, primitive)
        _add_primitive(document, binary, primitive, images[primitive.png])
    document["buffers"].append({"byteLength": len(binary)})
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    total = 12 + 8 + len(text) + 8 + len(binary)
    header = struct.pack("<4sII", b"glTF", 2, total)
    return (
        header
        + struct.pack("<I4s", len(text), b"JSON")
        + text
        + struct.pack("<I4s", len(binary), b"BIN\0")
        + bytes(binary)
    )


def _add_material(document: dict[str, Any], binary: bytearray, primitive: Primitive) -> int:
    index = len(document["materials"])
    view = _add_view(document, binary, primitive.png, None)
    document["images"].append({"bufferView": view, "mimeType": "image/png", "name": primitive.name})
    document["textures"].append({"source": index, "sampler": 0})
    document["materials"].append(
        {
            "name": primitive.name,
            "pbrMetallicRoughness": {
                "baseColorTexture": {"index": index},
                "metallicFactor": 0.0,
                "roughnessFactor": 1.0,
            },
            "extensions": {"KHR_materials_unlit": {}},
        }
    )
    return index


def _add_primitive(document: dict[str, Any], binary: bytearray, primitive: Primitive, material: int) -> None:
    x, y, z = primitive.positions.T
    positions = np.stack((x, -z, y), axis=1).astype("<f4")
    bounds = {"min": positions.min(axis=0).tolist(), "max": positions.max(axis=0).tolist()}
    colors = np.full((len(positions), 4), 255, np.uint8)  # with alpha: four bytes keep the rows aligned
    colors[:, :3] = primitive.colors
    small = len(positions) <= 2**16
    indices = primitive.triangles.astype("<u2" if small else "<u4").reshape(-1)
    arrays: tuple[tuple[NDArray[Any], int, str, int, dict[str, Any]], ...] = (
        (positions, _FLOAT, "VEC3", _ARRAY_BUFFER, bounds),
        (primitive.uv.astype("<f4"), _FLOAT, "VEC2", _ARRAY_BUFFER, {}),
        (colors, _UINT8, "VEC4", _ARRAY_BUFFER, {"normalized": True}),
        (indices, _UINT16 if small else _UINT32, "SCALAR", _ELEMENT_BUFFER, {}),
    )
    first = len(document["accessors"])
    for data, component, kind, target, extra in arrays:
        view = _add_view(document, binary, data.tobytes(), target)
        accessor = {"bufferView": view, "componentType": component, "count": len(data), "type": kind, **extra}
        document["accessors"].append(accessor)
    document["meshes"][0]["primitives"].append(
        {
            "attributes": {"POSITION": first, "TEXCOORD_0": first + 1, "COLOR_0": first + 2},
            "indices": first + 3,
            "material": material,
            "mode": 4,
        }
    )


def _add_view(document: dict[str, Any], binary: bytearray, data: bytes, target: int | None) -> int:
    view: dict[str, Any] = {"buffer": 0, "byteOffset": len(binary), "byteLength": len(data)}
    if target is not None:
        view["target"] = target
    document["bufferViews"].append(view)
    binary += data + b"\0" * (-len(data) % 4)
    return len(document["bufferViews"]) - 1
