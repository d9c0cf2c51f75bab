"""A scene ready to render: triangles in the world frame, in spatially sorted chunks, with mip-mapped textures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.embedded.limits import MAX_COORDINATE_M
from envs.embedded.render.cache import cached_arrays
from envs.embedded.render.glb import GlbScene, read_glb
from envs.embedded.render.materials import REPEAT
from envs.embedded.render.nodes import world_frame
from envs.embedded.render.texture import WRAP_U, build_pool
from vlnbench.errors import UsageError
from vlnbench.util.durable.limits import regular

CHUNK = 64
_BLOCK = 65536
FORMAT = 6
"""Version of the cached arrays: raise it whenever their meaning changes."""


class SceneArrays(NamedTuple):
    """What the kernels read; T render triangles, C chunks of `CHUNK` consecutive triangles. Read-only.

    corners: (T, 9) float32 world positions. planes: (T, 4) float32 unit normal and offset (n.x + d = 0).
    uvs: (T, 6) float32. colors: (T, 9) float32 vertex colors, or (0, 9). material_ids: (T,) int32.
    chunk_bounds: (C, 6) float32 lower and upper corner. table, levels, texels: see `texture.build_pool`.
    """

    corners: NDArray[np.float32]
    planes: NDArray[np.float32]
    uvs: NDArray[np.float32]
    colors: NDArray[np.float32]
    material_ids: NDArray[np.int32]
    chunk_bounds: NDArray[np.float32]
    table: NDArray[np.int32]
    levels: NDArray[np.int64]
    texels: NDArray[np.uint32]


@dataclass(frozen=True)
class Scene:
    """A loaded scene in the world frame (y up, meters).

    vertices: (V, 3) float32 and triangles: (T, 3) int32 are the whole mesh in file order, degenerate triangles
    included, as navmesh building wants it: triangles of a mirroring node stay as the file winds them, and only
    `render`, which feeds the kernels, turns them. bounds: (2, 3) float32 lower and upper corner.
    """

    path: Path
    vertices: NDArray[np.float32]
    triangles: NDArray[np.int32]
    bounds: NDArray[np.float32]
    render: SceneArrays


def load_scene(path: Path, *cached: Path) -> Scene:
    """Load a `.glb` scene, from one of the folders `cached` if it has been loaded before.

    A bare file is Z-up, like Matterport3D: file (x, y, z) becomes world (x, z, -y). A `<stem>.stage_config.json`
    beside it may give `up`, `front` and `scale`, as in habitat-sim; its other fields do not move the mesh there
    either. Textures keep their full size; with mip-maps a texel takes 5.3 bytes. Triangles without area are not
    drawn. Loading takes about 5 microseconds and, at its peak, 450 bytes per triangle.

    Cached arrays are mapped into memory, so worker processes share them and load them in no time.

    Raises:
        UsageError: broken scene or stage config; no cache can be written.
    """
    if not path.is_file():
        raise UsageError(f"{path}: scene file not found")
    config = path.parent / f"{path.stem}.stage_config.json"
    frame = _stage_frame(config) if config.is_file() else world_frame((0, 0, 1), (0, 1, 0))

    def build() -> dict[str, NDArray[Any]]:
        return _arrays(read_glb(path, frame), path)

    if not cached:
        return _scene(path, build())
    status = path.stat()
    key = {"format": FORMAT, "size": status.st_size, "mtime": status.st_mtime_ns, "frame": frame.tolist()}
    return _scene(path, cached_arrays(cached, path, key, build))


def prepare(source: GlbScene, path: Path) -> Scene:
    """The scene of arrays that are in the world frame already; `path` only names it."""
    return _scene(path, _arrays(source, path))


def _scene(path: Path, arrays: dict[str, NDArray[Any]]) -> Scene:
    for array in arrays.values():
        array.setflags(write=False)  # as the cached ones: kernels are compiled for one kind of array
    render = SceneArrays(**{name: arrays[name] for name in SceneArrays._fields})
    return Scene(path, arrays["vertices"], arrays["triangles"], arrays["bounds"], render)


def _stage_frame(config: Path) -> NDArray[np.float32]:
    try:
        fields = json.loads(regular(config).read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{config}: not valid JSON ({str(error).splitlines()[0]})") from None
    if not isinstance(fields, dict):
        raise UsageError(f"{config}: expected a JSON object")
    up, front, scale = (
        _vector(config, fields, name, default)
        for name, default in (("up", [0, 0, 1]), ("front", [0, 1, 0]), ("scale", [1, 1, 1]))
    )
    lengths = np.linalg.norm(up), np.linalg.norm(front)
    if min(lengths) < 1e-6 or abs(up @ front) > 1e-5 * lengths[0] * lengths[1]:
        raise UsageError(f"{config}: up and front: expected two perpendicular vectors")
    if (scale == 0).any():
        raise UsageError(f"{config}: scale: expected three numbers other than 0")
    return world_frame(up, front, scale)


def _vector(config: Path, fields: dict[str, Any], name: str, default: list[int]) -> NDArray[np.float64]:
    value = fields.get(name, default)
    numbers = isinstance(value, list) and all(
        isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < MAX_COORDINATE_M for x in value
    )
    if not numbers or len(value) != 3:
        raise UsageError(f"{config}: {name}: expected a list of three numbers")
    return np.array(value, np.float64)


def _arrays(source: GlbScene, path: Path) -> dict[str, NDArray[Any]]:
    arrays = _render_arrays(source)
    table, levels, texels = build_pool(source.materials, source.images, path)
    arrays |= {"table": table, "levels": levels, "texels": texels}
    _shift_uvs(arrays)
    return arrays | {"vertices": source.positions, "triangles": source.triangles}


def _render_arrays(source: GlbScene) -> dict[str, NDArray[Any]]:
    triangles = source.triangles
    if source.mirrored is not None:
        triangles = np.where(source.mirrored[:, None], triangles[:, ::-1], triangles)
    corners = source.positions[triangles]
    a, b, c = corners[:, 0], corners[:, 1], corners[:, 2]
    lower, upper = np.minimum(np.minimum(a, b), c), np.maximum(np.maximum(a, b), c)
    bounds = np.stack([lower.min(axis=0), upper.max(axis=0)])
    planes = _planes(corners)
    visible = np.flatnonzero(planes.any(axis=1))
    order = visible[_morton_order(0.5 * (lower[visible] + upper[visible]))]
    triangles = triangles[order]
    colors = np.empty((0, 9), np.float32)
    if source.colors is not None:
        colors = source.colors[triangles].reshape(-1, 9)
    starts = np.arange(0, len(order), CHUNK)
    chunk_bounds = np.empty((0, 6), np.float32)
    if len(order):
        parts = np.minimum.reduceat(lower[order], starts), np.maximum.reduceat(upper[order], starts)
        chunk_bounds = np.concatenate(parts, axis=1)
    return {
        "corners": corners[order].reshape(-1, 9),
        "planes": planes[order],
        "uvs": source.uvs[triangles].reshape(-1, 6),
        "colors": colors,
        "material_ids": source.material_ids[order],
        "chunk_bounds": chunk_bounds,
        "bounds": bounds,
    }


def _planes(corners: NDArray[np.float32]) -> NDArray[np.float32]:
    """(T, 4) unit normal and offset of triangles (T, 3, 3); zeros where a triangle has no area.

    A block at a time: in double precision, the whole of a large scene would take more memory than all the rest.
    """
    planes = np.zeros((len(corners), 4), np.float32)
    for first in range(0, len(corners), _BLOCK):
        part = corners[first : first + _BLOCK]
        edges = (part[:, 1:] - part[:, :1]).astype(np.float64)
        normals = np.cross(edges[:, 0], edges[:, 1])
        lengths = np.linalg.norm(normals, axis=1)
        normals /= np.where(lengths > 0, lengths, 1)[:, None]
        planes[first : first + _BLOCK, :3] = normals
        planes[first : first + _BLOCK, 3] = -(normals * part[:, 0]).sum(axis=1)
    return planes


def _shift_uvs(arrays: dict[str, NDArray[Any]]) -> None:
    """Move the coordinates of repeating textures near 0, where float32 is finest."""
    uvs = arrays["uvs"].reshape(-1, 3, 2)
    for axis in (0, 1):
        repeats = arrays["table"][arrays["material_ids"], WRAP_U + axis] == REPEAT
        lowest = np.minimum(np.minimum(uvs[:, 0, axis], uvs[:, 1, axis]), uvs[:, 2, axis])
        uvs[:, :, axis] -= np.where(repeats, np.floor(lowest), 0)[:, None]


def _morton_order(points: NDArray[np.float32]) -> NDArray[np.int64]:
    """Indices that sort (N, 3) points along a Z-order curve of 2^21 cells a side."""
    if not len(points):
        return np.empty(0, np.int64)
    low = points.min(axis=0)
    side = float((points.max(axis=0) - low).max()) or 1.0
    code = np.zeros(len(points), np.uint64)
    for axis in range(3):
        bits = ((points[:, axis] - low[axis]) * ((2**21 - 1) / side)).astype(np.uint64)
        for shift, mask in (
            (32, 0x1F00000000FFFF),
            (16, 0x1F0000FF0000FF),
            (8, 0x100F00F00F00F00F),
            (4, 0x10C30C30C30C30C3),
            (2, 0x1249249249249249),
        ):
            bits = (bits | (bits << np.uint64(shift))) & np.uint64(mask)
        code |= bits << np.uint64(axis)
    return np.argsort(code, kind="stable")
