"""Where the nodes of a glTF file place their meshes: habitat-sim's matrix products, rounding included.

habitat-sim multiplies the turn from the file's frame to the world with the matrices of a node and its parents,
root first, and then every vertex with the product, all in single precision. A millionth of a meter decides on
which side of a voxel boundary a floor lies, so navmeshes are equal only if every product rounds as it does there.

Source: Khronos glTF 2.0 specification; habitat-sim (`CoordinateFrame`, `joinHierarchy`) and Magnum (`Quaternion`,
`Matrix4`), MIT license, whose order of operations is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envs.embedded import limits
from envs.embedded.render.gltf_document import Document

Floats = NDArray[np.float32]
_TOLERANCE = 1e-5
"""Magnum takes vectors that differ by less for parallel, and a squared length within twice as much of 1 for 1."""


def mesh_instances(document: Document, root: Floats) -> Iterator[tuple[int, Floats]]:
    """Mesh index and (4, 4) float32 matrix to the world of every node with a mesh, depth first.

    root: (4, 4) float32, from the file's frame to the world.
    """
    n_nodes = len(document.get(document.root, "nodes", list, "glTF", []))
    stack = [(index, root) for index in reversed(_root_nodes(document, n_nodes))]
    seen: set[int] = set()
    while stack:
        index, parent = stack.pop()
        name = f"nodes[{index}]"
        node = document.item("nodes", index, "nodes")
        if index in seen:
            document.fail(name, "has more than one parent, or is its own; nodes must form a tree")
        seen.add(index)
        if len(seen) > limits.MAX_NODES:
            document.fail("nodes", f"the scene has more than {limits.MAX_NODES} nodes")
        with np.errstate(all="ignore"):  # absurd scales overflow here and are refused where they place vertices
            matrix = product(parent, _local_matrix(document, node, name))
        if "mesh" in node:
            yield document.integer(node, "mesh", name), matrix
        children = document.get(node, "children", list, name, [])
        stack += [(_index(document, child, f"{name}.children"), matrix) for child in children[::-1]]


def place(positions: Floats, matrix: Floats) -> Floats:
    """(V, 3) float32 positions moved by a (4, 4) float32 matrix."""
    x, y, z = positions.T
    placed = np.empty_like(positions)
    with np.errstate(all="ignore"):
        for axis, row in enumerate(matrix[:3]):
            placed[:, axis] = row[0] * x + row[1] * y + row[2] * z + row[3]
        if matrix[3].tolist() != [0, 0, 0, 1]:
            row = matrix[3]
            placed /= (row[0] * x + row[1] * y + row[2] * z + row[3])[:, None]
    return placed


def is_mirroring(matrix: Floats) -> bool:
    """Whether a matrix mirrors what it moves: its triangles are then clockwise seen from the front."""
    with np.errstate(all="ignore"):
        return bool(np.linalg.det(matrix[:3, :3].astype(np.float64)) < 0)


def world_frame(up: ArrayLike, front: ArrayLike, scale: ArrayLike = (1.0, 1.0, 1.0)) -> Floats:
    """(4, 4) float32 matrix that takes a file's `up` to world +y and its `front` to world -z, then scales."""
    up_, front_ = (_normalized([*np.asarray(vector, np.float32)]) for vector in (up, front))
    upright = _between([np.float32(0), np.float32(1), np.float32(0)], up_)
    ahead = _turned(upright, [np.float32(0), np.float32(0), np.float32(-1)])
    x, y, z, w = _normalized(_combined(_between(ahead, front_), upright))
    frame = np.eye(4, dtype=np.float32)
    frame[:3, :3] = _rotation([-x, -y, -z, w])
    frame[:3] *= np.asarray(scale, np.float32)[:, None]
    return frame


def product(a: Floats, b: Floats) -> Floats:
    """a @ b for (4, 4) float32, summed from the first column on and rounded after every operation."""
    total = np.zeros((4, 4), np.float32)
    for k in range(4):
        total += a[:, k : k + 1] * b[k]
    return total


def _root_nodes(document: Document, n_nodes: int) -> list[int]:
    scenes = document.get(document.root, "scenes", list, "glTF", [])
    if not scenes:
        return _parentless(document, n_nodes)
    scene = document.item("scenes", document.integer(document.root, "scene", "glTF", 0), "glTF.scene")
    return [_index(document, n, "scenes.nodes") for n in document.get(scene, "nodes", list, "scenes", [])]


def _parentless(document: Document, n_nodes: int) -> list[int]:
    children: set[int] = set()
    for index in range(n_nodes):
        node = document.item("nodes", index, "nodes")
        below = document.get(node, "children", list, f"nodes[{index}]", [])
        children.update(_index(document, child, f"nodes[{index}].children") for child in below)
    return [index for index in range(n_nodes) if index not in children]


def _index(document: Document, value: Any, where: str) -> int:
    return document.integer({"index": value}, "index", where)


def _local_matrix(document: Document, node: dict[str, Any], name: str) -> Floats:
    matrix = np.eye(4, dtype=np.float32)
    if "matrix" in node:
        columns = document.numbers(node, "matrix", name, matrix.ravel().tolist())
        return np.array(columns, np.float32).reshape(4, 4).T
    if "rotation" in node:
        quaternion = np.array(document.numbers(node, "rotation", name, [0.0, 0.0, 0.0, 1.0]), np.float32)
        if not 1e-6 < math.hypot(*quaternion.tolist()) < 1e6:
            document.fail(f"{name}.rotation", "is not a quaternion of unit length")
        matrix[:3, :3] = _rotation(_unit([*quaternion]))
    if "scale" in node:
        matrix[:3, :3] *= np.array(document.numbers(node, "scale", name, [1.0, 1.0, 1.0]), np.float32)
    if "translation" in node:
        matrix[:3, 3] = document.numbers(node, "translation", name, [0.0, 0.0, 0.0])
    return matrix


def _rotation(quaternion: Sequence[np.float32]) -> Floats:
    """(3, 3) matrix of a quaternion (x, y, z, w), rounded as Magnum does it."""
    x, y, z, w = quaternion
    one, two = np.float32(1), np.float32(2)
    return np.array(
        [
            [one - two * (y * y) - two * (z * z), two * x * y - two * z * w, two * x * z + two * y * w],
            [two * x * y + two * z * w, one - two * (x * x) - two * (z * z), two * y * z - two * x * w],
            [two * x * z - two * y * w, two * y * z + two * x * w, one - two * (x * x) - two * (y * y)],
        ],
        np.float32,
    )


def _dot(a: Sequence[np.float32], b: Sequence[np.float32]) -> np.float32:
    total = np.float32(0)
    for p, q in zip(a, b, strict=True):
        total += p * q
    return total


def _cross(a: Sequence[np.float32], b: Sequence[np.float32]) -> list[np.float32]:
    return [a[1] * b[2] - b[1] * a[2], a[2] * b[0] - b[2] * a[0], a[0] * b[1] - b[0] * a[1]]


def _normalized(vector: Sequence[np.float32]) -> list[np.float32]:
    length = np.sqrt(_dot(vector, vector))
    return [value / length for value in vector]


def _unit(quaternion: Sequence[np.float32]) -> Sequence[np.float32]:
    """A quaternion as it is if its length is 1 within Magnum's tolerance, normalized otherwise."""
    if abs(_dot(quaternion, quaternion) - np.float32(1)) < np.float32(2 * _TOLERANCE):
        return quaternion
    return _normalized(quaternion)


def _between(a: Sequence[np.float32], b: Sequence[np.float32]) -> list[np.float32]:
    """Quaternion (x, y, z, w) that turns the unit vector a to b."""
    zero, one = np.float32(0), np.float32(1)
    cosine = _dot(a, b)
    if cosine > one - np.float32(_TOLERANCE):
        return [zero, zero, zero, one]
    if cosine < -one + np.float32(_TOLERANCE):
        axis = _cross([zero, one, zero], a)
        if _dot(axis, axis) < np.float32(_TOLERANCE):
            axis = _cross([one, zero, zero], a)
        return [*_normalized(axis), zero]
    root = np.sqrt((one + cosine) * np.float32(2))
    return [*(value / root for value in _cross(a, b)), np.float32(0.5) * root]


def _turned(quaternion: Sequence[np.float32], vector: Sequence[np.float32]) -> list[np.float32]:
    """A vector turned by a unit quaternion."""
    axis, w = quaternion[:3], quaternion[3]
    twice = [np.float32(2) * value for value in _cross(axis, vector)]
    return [v + w * t + c for v, t, c in zip(vector, twice, _cross(axis, twice), strict=True)]


def _combined(a: Sequence[np.float32], b: Sequence[np.float32]) -> list[np.float32]:
    """The quaternion that turns by b, then by a."""
    across = _cross(a[:3], b[:3])
    return [*(a[3] * b[k] + b[3] * a[k] + across[k] for k in range(3)), a[3] * b[3] - _dot(a[:3], b[:3])]
