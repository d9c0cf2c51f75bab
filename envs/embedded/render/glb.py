"""Binary glTF 2.0 scenes as plain arrays: triangles in the world frame, materials and raw images.

Read: node hierarchy, meshes and primitives (triangles, strips, fans), TEXCOORD_0, COLOR_0, embedded PNG and
JPEG textures, base color factor, KHR_texture_transform. Everything is unlit, as habitat-sim renders a stage
by default, so normals, tangents, emission, alpha, skins and animations play no part.

Source: Khronos glTF 2.0 specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.embedded import limits
from envs.embedded.render.gltf_document import Document, read_document
from envs.embedded.render.materials import MAX_UV, Material, Materials
from envs.embedded.render.nodes import is_mirroring, mesh_instances, place
from vlnbench.errors import UsageError

MAX_COLOR = 1e4
_TRIANGLES, _STRIP, _FAN = 4, 5, 6
_WIDTHS = {"POSITION": (3,), "TEXCOORD_0": (2,), "COLOR_0": (3, 4)}
"""Attribute -> numbers of a vertex."""


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


class _Primitive(NamedTuple):
    """What the file says of a primitive, before its arrays are read. Accessors by index, -1 for none."""

    name: str
    mode: int
    positions: int
    uvs: int
    colors: int
    indices: int
    n_vertices: int
    n_triangles: int
    material: int
    texture_matrix: NDArray[np.float32] | None


class _Part(NamedTuple):
    """A primitive where a node puts it."""

    primitive: _Primitive
    matrix: NDArray[np.float32]
    mirrored: bool


def read_glb(path: Path, frame: NDArray[np.float32] | None = None) -> GlbScene:
    """Read a `.glb` scene. frame: (4, 4) float32, from the file's frame to the world; without, they are the same.

    Sizes are counted and compared with `envs.embedded.limits` before arrays are read and images decoded.

    Raises:
        UsageError: broken or oversized file or a feature that is not supported (Draco, meshopt, KTX2 or external
            data, ...); the message names file and field.
    """
    document = read_document(path)
    materials = Materials(document)
    parts = _parts(document, np.eye(4, dtype=np.float32) if frame is None else frame, materials)
    n_vertices = sum(part.primitive.n_vertices for part in parts)
    n_triangles = sum(part.primitive.n_triangles for part in parts)
    if not n_triangles:
        raise UsageError(f"{path}: meshes: the scene has no triangles")
    scene = GlbScene(
        positions=np.empty((n_vertices, 3), np.float32),
        uvs=np.empty((n_vertices, 2), np.float32),
        colors=np.empty((n_vertices, 3), np.float32) if any(p.primitive.colors >= 0 for p in parts) else None,
        triangles=np.empty((n_triangles, 3), np.int32),
        material_ids=np.empty(n_triangles, np.int32),
        materials=tuple(materials.used),
        images=materials.pixels(),
        mirrored=np.empty(n_triangles, np.bool_) if any(part.mirrored for part in parts) else None,
    )
    vertex = triangle = 0
    for part in parts:
        vertices = slice(vertex, vertex + part.primitive.n_vertices)
        triangles = slice(triangle, triangle + part.primitive.n_triangles)
        _read_part(document, part, scene, vertices, triangles)
        vertex, triangle = vertices.stop, triangles.stop
    return scene


def _parts(document: Document, frame: NDArray[np.float32], materials: Materials) -> list[_Part]:
    """Every primitive once for every node that uses its mesh, in the order in which they are drawn."""
    size = document.size
    triangles = limits.allowance(size, limits.FREE_TRIANGLES, limits.BYTES_PER_TRIANGLE, limits.MAX_TRIANGLES)
    most = np.array([limits.MAX_PARTS, limits.VERTICES_PER_TRIANGLE * triangles, triangles])
    found = np.zeros(3, np.int64)
    meshes: dict[int, tuple[list[_Primitive], NDArray[np.int64]]] = {}
    parts: list[_Part] = []
    for mesh_index, matrix in mesh_instances(document, frame):
        if mesh_index not in meshes:
            primitives = _mesh(document, mesh_index, materials)
            sizes = [(1, primitive.n_vertices, primitive.n_triangles) for primitive in primitives]
            meshes[mesh_index] = primitives, np.array([*sizes, (0, 0, 0)], np.int64).sum(axis=0)
        primitives, sums = meshes[mesh_index]
        found += sums
        for number, limit, kind in zip(found, most, ("primitives", "vertices", "triangles"), strict=True):
            if number > limit:
                document.fail(
                    f"meshes[{mesh_index}]",
                    f"{number} {kind} up to here, counted once for every node that uses them; at most {limit} in a"
                    f" file of {size} bytes",
                )
        mirrored = is_mirroring(matrix)
        parts += [_Part(primitive, matrix, mirrored) for primitive in primitives]
    return parts


def _mesh(document: Document, index: int, materials: Materials) -> list[_Primitive]:
    mesh, where = document.item("meshes", index, "nodes.mesh"), f"meshes[{index}]"
    primitives = document.get(mesh, "primitives", list, where, [])
    if len(primitives) > limits.MAX_PARTS:
        document.fail(f"{where}.primitives", f"{len(primitives)} primitives, more than {limits.MAX_PARTS}")
    found = []
    for number, primitive in enumerate(primitives):
        name = f"{where}.primitives[{number}]"
        if not isinstance(primitive, dict):
            document.fail(name, "expected an object")
        found.append(_primitive(document, primitive, name, materials))
    return found


def _primitive(document: Document, primitive: dict[str, Any], name: str, materials: Materials) -> _Primitive:
    if "KHR_draco_mesh_compression" in document.get(primitive, "extensions", dict, name, {}):
        document.fail(f"{name}.extensions", "Draco compression is not supported; export without it")
    mode = document.integer(primitive, "mode", name, _TRIANGLES)
    if mode not in (_TRIANGLES, _STRIP, _FAN):
        document.fail(f"{name}.mode", f"{mode} is not supported; use triangles (4), strips (5) or fans (6)")
    attributes = document.get(primitive, "attributes", dict, name, {})
    accessors = {"POSITION": document.integer(attributes, "POSITION", f"{name}.attributes")}
    for key in ("TEXCOORD_0", "COLOR_0"):
        accessors[key] = document.integer(attributes, key, f"{name}.attributes") if key in attributes else -1
    counts = {
        len(document.accessor(accessors[key], f"{name} {key}", widths))
        for key, widths in _WIDTHS.items()
        if accessors[key] >= 0
    }
    if len(counts) > 1:
        document.fail(f"{name}.attributes", "accessors have different counts")
    (n_vertices,) = counts
    indices, n_indices = -1, n_vertices
    if "indices" in primitive:
        indices = document.integer(primitive, "indices", name)
        n_indices = len(document.accessor(indices, f"{name} indices", (1,)))
    if mode == _TRIANGLES and n_indices % 3:
        document.fail(f"{name}.indices", f"{n_indices} indices are not a multiple of 3")
    material, texture_matrix = materials.use(primitive, name)
    return _Primitive(
        name=name,
        mode=mode,
        positions=accessors["POSITION"],
        uvs=accessors["TEXCOORD_0"],
        colors=accessors["COLOR_0"],
        indices=indices,
        n_vertices=n_vertices,
        n_triangles=n_indices // 3 if mode == _TRIANGLES else max(n_indices - 2, 0),
        material=material,
        texture_matrix=texture_matrix,
    )


def _read_part(document: Document, part: _Part, scene: GlbScene, vertices: slice, triangles: slice) -> None:
    """Fill the rows of one part in the arrays of the scene."""
    primitive, name = part.primitive, part.primitive.name
    positions = place(document.floats(primitive.positions, f"{name} POSITION", _WIDTHS["POSITION"]), part.matrix)
    if not (np.abs(positions) < limits.MAX_COORDINATE_M).all():
        document.fail("nodes", f"transforms place vertices beyond {limits.MAX_COORDINATE_M:.0f} m")
    scene.positions[vertices] = positions
    scene.uvs[vertices] = 0
    if primitive.uvs >= 0:
        scene.uvs[vertices] = _uvs(document, primitive)
    if scene.colors is not None:
        scene.colors[vertices] = 1
        if primitive.colors >= 0:
            scene.colors[vertices] = _colors(document, primitive)
    scene.triangles[triangles] = _triangles(document, primitive) + np.int32(vertices.start)
    scene.material_ids[triangles] = primitive.material
    if scene.mirrored is not None:
        scene.mirrored[triangles] = part.mirrored


def _uvs(document: Document, primitive: _Primitive) -> NDArray[np.float32]:
    name = primitive.name
    uvs = document.floats(primitive.uvs, f"{name} TEXCOORD_0", _WIDTHS["TEXCOORD_0"])
    if len(uvs) and np.abs(uvs).max() > MAX_UV:
        document.fail(f"{name}.attributes.TEXCOORD_0", f"texture coordinates beyond {MAX_UV:.0f}")
    matrix = primitive.texture_matrix
    if matrix is not None:
        uvs = (uvs @ matrix[:, :2].T + matrix[:, 2]).astype(np.float32)
    return uvs


def _colors(document: Document, primitive: _Primitive) -> NDArray[np.float32]:
    name = primitive.name
    colors = document.floats(primitive.colors, f"{name} COLOR_0", _WIDTHS["COLOR_0"])[:, :3]
    if len(colors) and np.abs(colors).max() > MAX_COLOR:
        document.fail(f"{name}.attributes.COLOR_0", f"vertex colors beyond {MAX_COLOR:.0f}")
    return colors


def _triangles(document: Document, primitive: _Primitive) -> NDArray[np.int32]:
    name, count = primitive.name, primitive.n_vertices
    if primitive.indices >= 0:
        stored = document.accessor(primitive.indices, f"{name} indices", (1,))
        if stored.dtype.kind != "u":
            document.fail(f"{name}.indices", "expected unsigned integers")
        if stored.size and int(stored.max()) >= count:
            document.fail(f"{name}.indices", f"index {int(stored.max())} is out of range, {count} vertices")
        indices = stored[:, 0].astype(np.int32)
    else:
        indices = np.arange(count, dtype=np.int32)
    if primitive.mode == _TRIANGLES:
        return np.stack([indices[0::3], indices[1::3], indices[2::3]], 1)
    if primitive.mode == _FAN:
        return np.stack([indices[:1].repeat(max(len(indices) - 2, 0)), indices[1:-1], indices[2:]], 1)
    strip: NDArray[np.int32] = np.stack([indices[:-2], indices[1:-1], indices[2:]], 1)
    strip[1::2] = strip[1::2, [1, 0, 2]]
    return strip
