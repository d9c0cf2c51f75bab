"""Materials and textures of a glTF file: base color, sampler, texture transform, embedded PNG and JPEG images."""

from __future__ import annotations

import base64
import binascii
import io
import math
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from envs.embedded import limits
from envs.embedded.render.gltf_document import Document, short

MAX_UV = 1e6
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
    """Unlit surface: `texture` is an index into the images of the scene (-1 = plain), multiplied by `factor`."""

    texture: int = -1
    factor: tuple[float, float, float] = (1.0, 1.0, 1.0)
    sampler: Sampler = field(default_factory=Sampler)


class Materials:
    """Materials and images in the order of their first use; nothing unused is decoded.

    Images are only opened until `pixels` decodes them: by then their sizes have been counted.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.used: list[Material] = []
        self._images: list[tuple[str, Image.Image]] = []
        self._image_slots: dict[int, int] = {}
        self._slots: dict[int, tuple[int, NDArray[np.float32] | None]] = {}
        self._pooled: set[Material] = set()
        self._texels = 0

    def use(self, primitive: dict[str, Any], where: str) -> tuple[int, NDArray[np.float32] | None]:
        """Index of a primitive's material and the (2, 3) transform of its texture coordinates, if any.

        A primitive without material is plain white, glTF's default material.
        """
        index = self.document.integer(primitive, "material", where) if "material" in primitive else -1
        if index not in self._slots:
            material, matrix = (Material(), None) if index < 0 else self._read(index, where)
            self._slots[index] = len(self.used), matrix
            self.used.append(material)
            self._count(material)
        return self._slots[index]

    def pixels(self) -> tuple[NDArray[np.uint8], ...]:
        """(H, W, 3) uint8 of every image that is used."""
        return tuple(self._decode(name, image) for name, image in self._images)

    def _count(self, material: Material) -> None:
        """Count the texels of a material that differs from all before it, against what the file may have."""
        if material.texture < 0 or material in self._pooled:
            return
        self._pooled.add(material)
        name, image = self._images[material.texture]
        self._texels += image.width * image.height
        size = self.document.size
        limit = limits.allowance(size, limits.FREE_TEXELS, 1 / limits.TEXELS_PER_BYTE, limits.MAX_TEXELS)
        if self._texels > limit:
            self.document.fail(
                name,
                f"the textures have {self._texels} texels up to here, counted once for every kind of material; at"
                f" most {limit} in a file of {size} bytes; use smaller textures",
            )

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
            found = short(sorted(document.get(texture, "extensions", dict, name, {})))
            document.fail(f"{name}.source", f"is missing (extensions: {found}); use PNG or JPEG textures")
        source = document.integer(texture, "source", name)
        if source not in self._image_slots:
            self._image_slots[source] = len(self._images)
            self._images.append((f"images[{source}]", self._open(source, f"{name}.source")))
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

    def _open(self, index: int, where: str) -> Image.Image:
        """An image whose size is known and fine, its pixels not yet decoded."""
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
        with self._reading(name, data):
            opened = Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))
        if max(opened.size) > limits.MAX_TEXTURE_SIDE:
            width, height = opened.size
            document.fail(name, f"is {width} x {height} pixels, at most {limits.MAX_TEXTURE_SIDE} a side are read")
        if opened.mode not in _IMAGE_MODES:
            document.fail(name, f"pixel format {opened.mode} is not supported; use 8-bit PNG or JPEG")
        return opened

    def _decode(self, name: str, image: Image.Image) -> NDArray[np.uint8]:
        """(H, W, 3) uint8 pixels."""
        with self._reading(name, b""), image:
            image.load()
            pixels: NDArray[np.uint8] = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
        return pixels

    @contextmanager
    def _reading(self, name: str, data: bytes) -> Iterator[None]:
        """Pillow at work: what it finds is one line, and our own limits hold instead of its."""
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of transparency and metadata
                yield
        except UnidentifiedImageError:
            kind = "KTX2" if data[1:7] == b"KTX 20" else "an unknown format or damaged"
            self.document.fail(name, f"is {kind}; only embedded PNG and JPEG images are supported")
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            reason = short(str(error).splitlines()[0]) if str(error) else "damaged"
            self.document.fail(name, f"cannot be decoded ({reason})")
        finally:
            Image.MAX_IMAGE_PIXELS = limit
