"""Binary glTF 2.0 scenes as plain arrays: triangles in the file's frame, materials and raw images.

Read: node hierarchy, meshes and primitives (triangles, strips, fans), TEXCOORD_0, COLOR_0, embedded PNG and
JPEG textures, base color factor, KHR_texture_transform. Everything is unlit, as habitat-sim renders a stage
by default, so normals, tangents, emission, alpha, skins and animations play no part.

Source: Khronos glTF 2.0 specification.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from envs.embedded.render.gltf_document import Document, read_document
from envs.embedded.render.nodes import is_mirroring, mesh_instances, place
from vlnbench.errors import UsageError

MAX_COORDINATE_M = 1e6
MAX_UV = 1e6
MAX_COLOR = 1e4
MAX_TEXTURE_SIDE = 16384
REPEAT, CLAMP, MIRROR = 0, 1, 2
_WRAPS = {10497: REPEAT, 33071: CLAMP, 33648: MIRROR}
NO_MIPS, NEAREST_MIP, LINEAR_MIPS = 0, 1, 2
_NEAREST, _LINEAR, _LINEAR_MIPMAP_LINEAR = 9728, 9729, 9987
_MINIFICATIONS = {
    _NEAREST: (True, NO_MIPS),
    _LINEAR: (False, NO_MIPS),
    9984: (True, NEAREST_MIP),
    9985: (False, NEAREST_MIP),
    9986: (True, LINEAR_MIPS),
    _LINEAR_MIPMAP_LINEAR: (False, LINEAR_MIPS),
}
_SAMPLING: dict[str, tuple[int, Collection[int]]] = {
    "wrapS": (10497, _WRAPS),
    "wrapT": (10497, _WRAPS),
    "magFilter": (_LINEAR, (_NEAREST, _LINEAR)),
    "minFilter": (_LINEAR_MIPMAP_LINEAR, _MINIFICATIONS),
}
"""Sampler field -> default, as habitat-sim has it, and known values."""
_TRIANGLES, _STRIP, _FAN = 4, 5, 6
_IMAGE_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


@dataclass(frozen=True)
class Sampler:
    """How a texture is read: wrap modes along u and v (REPEAT, CLAMP, MIRROR), whether the nearest texel is taken
    when magnified and when minified, and the use of mip levels (NO_MIPS, NEAREST_MIP, LINEAR_MIPS)."""

    wrap: tuple[int, int] = (REPEAT, REPEAT)
    nearest: tuple[bool, bool] = (False, False)
    mips: int = LINEAR_MIPS


@dataclass(frozen=True)
class Material:
    """Unlit surface: `texture` is an index into `GlbScene.images` (-1 = plain), multiplied by `factor`."""

    texture: int = -1
    factor: tuple[float, float, float] = (1.0, 1.0, 1.0)
    sampler: Sampler = field(default_factory=Sampler)


@dataclass(frozen=True)
class GlbScene:
    """All triangles of a file in the world frame, in file order.

    positions: (V, 3) float32 meters. uvs: (V, 2) float32, row 0 of a texture is v = 0. colors: (V, 3) float32
    factors, which may exceed 1, or None where no primitive has vertex colors. triangles: (T, 3) int32 as the file
    winds them, counter-clockwise seen from the front. material_ids: (T,) int32 into `materials`. images: (H, W, 3)
    uint8. mirrored: (T,) bool, triangles whose node mirrors them, so that they are clockwise seen from the front;
    None where there are none.
    """

    positions: NDArray[np.float32]
    uvs: NDArray[np.float32]
    colors: NDArray[np.float32] | None
    triangles: NDArray[np.int32]
    material_ids: NDArray[np.int32]
    materials: tuple[Material, ...]
    images: tuple[NDArray[np.uint8], ...]
    mirrored: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class _Primitive:
    positions: NDArray[np.float32]
    uvs: NDArray[np.float32]
    colors: NDArray[np.float32] | None
    triangles: NDArray[np.int32]
    material: int
    mirrored: bool = False


def read_glb(path: Path, frame: NDArray[np.float32] | None = None) -> GlbScene:
    """Read a `.glb` scene. frame: (4, 4) float32, from the file's frame to the world; without, they are the same.

    Raises:
        UsageError: broken file or a feature that is not supported (Draco, meshopt, KTX2 or external data, ...);
            the message names file and field.
    """
    document = read_document(path)
    materials = _Materials(document)
    primitives: dict[int, list[_Primitive]] = {}
    parts: list[_Primitive] = []
    for mesh_index, matrix in mesh_instances(document, np.eye(4, dtype=np.float32) if frame is None else frame):
        if mesh_index not in primitives:
            primitives[mesh_index] = list(_mesh(document, mesh_index, materials))
        parts += [_placed(document, part, matrix) for part in primitives[mesh_index]]
    if not any(len(part.triangles) for part in parts):
        raise UsageError(f"{path}: meshes: the scene has no triangles")
    starts = np.cumsum([0] + [len(part.positions) for part in parts])
    if starts[-1] >= 2**31:
        raise UsageError(f"{path}: meshes: more than 2^31 vertices")
    colors = None
    if any(part.colors is not None for part in parts):
        colors = np.concatenate(
            [np.ones_like(part.positions) if part.colors is None else part.colors for part in parts]
        )
    mirrored = None
    if any(part.mirrored for part in parts):
        mirrored = np.repeat([part.mirrored for part in parts], [len(part.triangles) for part in parts])
    return GlbScene(
        positions=np.concatenate([part.positions for part in parts]),
        uvs=np.concatenate([part.uvs for part in parts]),
        colors=colors,
        triangles=np.concatenate(
            [part.triangles + np.int32(start) for part, start in zip(parts, starts, strict=False)]
        ),
        material_ids=np.concatenate([np.full(len(p.triangles), p.material, np.int32) for p in parts]),
        materials=tuple(materials.used),
        images=tuple(materials.images),
        mirrored=mirrored,
    )


def _placed(document: Document, part: _Primitive, matrix: NDArray[np.float32]) -> _Primitive:
    """The primitive moved to the world."""
    positions = place(part.positions, matrix)
    if not (np.abs(positions) < MAX_COORDINATE_M).all():
        document.fail("nodes", f"transforms place vertices beyond {MAX_COORDINATE_M:.0f} m")
    return replace(part, positions=positions, mirrored=is_mirroring(matrix))


def _mesh(document: Document, index: int, materials: _Materials) -> Iterator[_Primitive]:
    mesh = document.item("meshes", index, "nodes.mesh")
    for number, primitive in enumerate(document.get(mesh, "primitives", list, f"meshes[{index}]", [])):
        name = f"meshes[{index}].primitives[{number}]"
        if not isinstance(primitive, dict):
            document.fail(name, "expected an object")
        yield _primitive(document, primitive, name, materials)


def _primitive(document: Document, primitive: dict[str, Any], name: str, materials: _Materials) -> _Primitive:
    if "KHR_draco_mesh_compression" in document.get(primitive, "extensions", dict, name, {}):
        document.fail(f"{name}.extensions", "Draco compression is not supported; export without it")
    attributes = document.get(primitive, "attributes", dict, name, {})
    positions = document.floats(
        document.integer(attributes, "POSITION", f"{name}.attributes"), f"{name} POSITION", (3,)
    )
    count = len(positions)
    material, texture_matrix = materials.use(primitive, name)
    uvs = np.zeros((count, 2), np.float32)
    if "TEXCOORD_0" in attributes:
        index = document.integer(attributes, "TEXCOORD_0", f"{name}.attributes")
        uvs = document.floats(index, f"{name} TEXCOORD_0", (2,))
    colors = None
    if "COLOR_0" in attributes:
        index = document.integer(attributes, "COLOR_0", f"{name}.attributes")
        colors = document.floats(index, f"{name} COLOR_0", (3, 4))[:, :3]
    if len(uvs) != count or (colors is not None and len(colors) != count):
        document.fail(f"{name}.attributes", "accessors have different counts")
    if count and np.abs(uvs).max() > MAX_UV:
        document.fail(f"{name}.attributes.TEXCOORD_0", f"texture coordinates beyond {MAX_UV:.0f}")
    if count and colors is not None and np.abs(colors).max() > MAX_COLOR:
        document.fail(f"{name}.attributes.COLOR_0", f"vertex colors beyond {MAX_COLOR:.0f}")
    if texture_matrix is not None:
        uvs = (uvs @ texture_matrix[:, :2].T + texture_matrix[:, 2]).astype(np.float32)
    return _Primitive(positions, uvs, colors, _triangles(document, primitive, name, count), material)


def _triangles(document: Document, primitive: dict[str, Any], name: str, count: int) -> NDArray[np.int32]:
    mode = document.integer(primitive, "mode", name, _TRIANGLES)
    if mode not in (_TRIANGLES, _STRIP, _FAN):
        document.fail(f"{name}.mode", f"{mode} is not supported; use triangles (4), strips (5) or fans (6)")
    if "indices" in primitive:
        stored = document.accessor(document.integer(primitive, "indices", name), f"{name} indices", (1,))
        if stored.dtype.kind != "u":
            document.fail(f"{name}.indices", "expected unsigned integers")
        if stored.size and int(stored.max()) >= count:
            document.fail(f"{name}.indices", f"index {int(stored.max())} is out of range, {count} vertices")
        indices = stored[:, 0].astype(np.int32)
    else:
        indices = np.arange(count, dtype=np.int32)
    if mode == _TRIANGLES:
        if len(indices) % 3:
            document.fail(f"{name}.indices", f"{len(indices)} indices are not a multiple of 3")
        return np.stack([indices[0::3], indices[1::3], indices[2::3]], 1)
    if mode == _FAN:
        return np.stack([indices[:1].repeat(max(len(indices) - 2, 0)), indices[1:-1], indices[2:]], 1)
    strip: NDArray[np.int32] = np.stack([indices[:-2], indices[1:-1], indices[2:]], 1)
    strip[1::2] = strip[1::2, [1, 0, 2]]
    return strip


class _Materials:
    """Materials and images in the order of their first use; nothing unused is decoded."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.used: list[Material] = []
        self.images: list[NDArray[np.uint8]] = []
        self._image_slots: dict[int, int] = {}
        self._slots: dict[int, tuple[int, NDArray[np.float32] | None]] = {}

    def use(self, primitive: dict[str, Any], where: str) -> tuple[int, NDArray[np.float32] | None]:
        """Index of a primitive's material and the (2, 3) transform of its texture coordinates, if any.

        A primitive without material is plain white, glTF's default material.
        """
        index = self.document.integer(primitive, "material", where) if "material" in primitive else -1
        if index not in self._slots:
            material, matrix = (Material(), None) if index < 0 else self._read(index, where)
            self._slots[index] = len(self.used), matrix
            self.used.append(material)
        return self._slots[index]

    def _read(self, index: int, where: str) -> tuple[Material, NDArray[np.float32] | None]:
        document, name = self.document, f"materials[{index}]"
        material = document.item("materials", index, f"{where}.material")
        name += ".pbrMetallicRoughness"
        surface = document.get(material, "pbrMetallicRoughness", dict, name, {})
        factor = document.numbers(surface, "baseColorFactor", name, [1.0, 1.0, 1.0, 1.0])
        red, green, blue = (min(max(value, 0.0), 1.0) for value in factor[:3])
        reference = document.get(surface, "baseColorTexture", dict, name, None)
        if reference is None:
            return Material(-1, (red, green, blue)), None
        name += ".baseColorTexture"
        if document.integer(reference, "texCoord", name, 0) != 0:
            document.fail(f"{name}.texCoord", "only texture coordinate set 0 is supported")
        texture_index = document.integer(reference, "index", name)
        texture = document.item("textures", texture_index, f"{name}.index")
        image, sampler = self._texture(texture, f"textures[{texture_index}]")
        return Material(image, (red, green, blue), sampler), self._matrix(reference, name)

    def _matrix(self, reference: dict[str, Any], name: str) -> NDArray[np.float32] | None:
        document = self.document
        extensions = document.get(reference, "extensions", dict, name, {})
        if "KHR_texture_transform" not in extensions:
            return None
        name += ".KHR_texture_transform"
        transform = document.get(extensions, "KHR_texture_transform", dict, name)
        if document.integer(transform, "texCoord", name, 0) != 0:
            document.fail(f"{name}.texCoord", "only texture coordinate set 0 is supported")
        shift_u, shift_v = document.numbers(transform, "offset", name, [0.0, 0.0])
        scale_u, scale_v = document.numbers(transform, "scale", name, [1.0, 1.0])
        if max(map(abs, (shift_u, shift_v, scale_u, scale_v))) > MAX_UV:
            document.fail(name, f"offset or scale beyond {MAX_UV:.0f}")
        (angle,) = document.numbers({"r": [transform.get("rotation", 0.0)]}, "r", name, [0.0])
        cos, sin = math.cos(angle), math.sin(angle)
        return np.array(
            [[cos * scale_u, sin * scale_v, shift_u], [-sin * scale_u, cos * scale_v, shift_v]], np.float32
        )

    def _texture(self, texture: dict[str, Any], name: str) -> tuple[int, Sampler]:
        document = self.document
        if "source" not in texture:
            found = ", ".join(map(str, document.get(texture, "extensions", dict, name, {}))) or "none"
            document.fail(f"{name}.source", f"is missing (extensions: {found}); use PNG or JPEG textures")
        source = document.integer(texture, "source", name)
        if source not in self._image_slots:
            self._image_slots[source] = len(self.images)
            self.images.append(self._image(source, f"{name}.source"))
        index = document.integer(texture, "sampler", name) if "sampler" in texture else -1
        return self._image_slots[source], self._sampler(index, name) if index >= 0 else Sampler()

    def _sampler(self, index: int, where: str) -> Sampler:
        document, name = self.document, f"samplers[{index}]"
        sampler = document.item("samplers", index, f"{where}.sampler")
        modes = {key: document.integer(sampler, key, name, default) for key, (default, _) in _SAMPLING.items()}
        for key, (_, known) in _SAMPLING.items():
            if modes[key] not in known:
                document.fail(f"{name}.{key}", f"expected one of {sorted(known)}, found {modes[key]}")
        nearest, mips = _MINIFICATIONS[modes["minFilter"]]
        return Sampler(
            (_WRAPS[modes["wrapS"]], _WRAPS[modes["wrapT"]]), (modes["magFilter"] == _NEAREST, nearest), mips
        )

    def _image(self, index: int, where: str) -> NDArray[np.uint8]:
        document, name = self.document, f"images[{index}]"
        image = document.item("images", index, where)
        if "bufferView" in image:
            data = bytes(document.view(document.integer(image, "bufferView", name), f"{name}.bufferView")[0])
        else:
            header, _, payload = document.get(image, "uri", str, name, "").partition(",")
            if not (header.startswith("data:") and header.endswith(";base64")):
                document.fail(f"{name}.uri", "external images are not supported; embed them in the .glb")
            try:
                data = base64.b64decode(payload, validate=True)
            except (binascii.Error, ValueError):
                document.fail(f"{name}.uri", "is not valid base64")
        return _decode(document, data, name)


def _decode(document: Document, data: bytes, name: str) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 pixels of a PNG or JPEG file in memory."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of size, transparency and metadata; sizes are checked
            with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
                if max(image.size) > MAX_TEXTURE_SIDE:
                    document.fail(name, f"is larger than {MAX_TEXTURE_SIDE} pixels a side")
                if image.mode not in _IMAGE_MODES:
                    document.fail(name, f"pixel format {image.mode} is not supported; use 8-bit PNG or JPEG")
                pixels: NDArray[np.uint8] = np.asarray(image.convert("RGB"))
    except UnidentifiedImageError:
        kind = "KTX2" if data[1:7] == b"KTX 20" else "an unknown format or damaged"
        document.fail(name, f"is {kind}; only embedded PNG and JPEG images are supported")
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        document.fail(name, f"cannot be decoded ({str(error).splitlines()[0] if str(error) else 'damaged'})")
    return pixels
