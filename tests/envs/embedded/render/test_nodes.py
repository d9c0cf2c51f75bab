"""Placement of meshes by their nodes: the tree, and habitat-sim's products down to the last bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.render.glb import read_glb
from envs.embedded.render.nodes import place, product, world_frame
from envs.embedded.render.scene import load_scene
from tests.envs.embedded.render.glb_writer import GlbWriter, quad
from vlnbench.errors import UsageError

F = np.float32
HALF = math.sqrt(0.5)


def nested(tmp_path: Path, *nodes: dict[str, Any]) -> Path:
    """A quad below nodes that are each the parent of the next."""
    writer = GlbWriter()
    writer.mesh(*quad()[:2])
    mesh = writer.root["nodes"][0]["mesh"]
    writer.root["nodes"] = [{**node, "children": [k + 1]} for k, node in enumerate(nodes)]
    writer.root["nodes"][-1] |= {"mesh": mesh, "children": []}
    writer.root["scenes"][0]["nodes"] = [0]
    return writer.save(tmp_path / "a.glb")


def test_node_hierarchy(tmp_path: Path) -> None:
    matrix = np.diag([2.0, 2.0, 2.0, 1.0])
    matrix[:3, 3] = [10, 0, 0]
    moved = {"translation": [1, 2, 3], "rotation": [0, 0, HALF, HALF]}
    found = read_glb(nested(tmp_path, {"matrix": matrix.T.ravel().tolist()}, moved)).positions
    x, y, z = quad()[0].T
    expected = np.stack([2 * (1 - y) + 10, 2 * (2 + x), 2 * (3 + z)], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def by_hand(matrices: list[NDArray[np.float32]], point: NDArray[np.float32]) -> list[np.float32]:
    """root x ... x node x point in single precision, one operation after another as Magnum writes them."""
    total = matrices[0]
    for matrix in matrices[1:]:
        joined = np.zeros((4, 4), F)
        for row in range(4):
            for column in range(4):
                for k in range(4):
                    joined[row, column] = F(joined[row, column] + F(total[row, k] * matrix[k, column]))
        total = joined
    moved = []
    for row in range(3):
        value = F(0)
        for k, coordinate in enumerate((*point, F(1))):
            value = F(value + F(total[row, k] * coordinate))
        moved.append(value)
    return moved


def test_products_round_as_in_habitat_sim(tmp_path: Path) -> None:
    # Written out: 0.1, 0.3, 0.7 and thirds are not single-precision numbers, so every product and sum rounds.
    parent = np.array([[0, -0.3, 0, 0.1], [0.3, 0, 0, 0.2], [0, 0, 0.7, 1 / 3], [0, 0, 0, 1]], F)
    child = np.array([[1.1, 0, 0, 0.3], [0, 0, -0.9, 0.7], [0, 1.3, 0, 0.1], [0, 0, 0, 1]], F)
    path = nested(tmp_path, *({"matrix": matrix.T.ravel().tolist()} for matrix in (parent, child)))
    frame = world_frame((0, 0, 1), (0, 1, 0))
    found = load_scene(path).vertices
    expected = [by_hand([frame, parent, child], point) for point in quad()[0]]
    np.testing.assert_array_equal(found, np.array(expected, F))
    points = np.column_stack([quad()[0], np.ones(4)])
    exact = (points @ (frame.astype(float) @ parent @ child).T)[:, :3].astype(F)
    assert (found != exact).any(), "a case in which double precision is told apart"


def test_a_rotated_and_scaled_node_rounds_as_in_habitat_sim(tmp_path: Path) -> None:
    quaternion = [0.1, 0.3, 0.5, math.sqrt(0.65)]
    x, y, z, w = (F(value) for value in quaternion)
    one, two = F(1), F(2)
    rotation = [
        [one - two * (y * y) - two * (z * z), two * x * y - two * z * w, two * x * z + two * y * w],
        [two * x * y + two * z * w, one - two * (x * x) - two * (z * z), two * y * z - two * x * w],
        [two * x * z - two * y * w, two * y * z + two * x * w, one - two * (x * x) - two * (y * y)],
    ]
    scale = [F(1.1), F(0.7), F(-1.3)]
    local = np.eye(4, dtype=F)
    local[:3, :3] = [[F(value * factor) for value, factor in zip(row, scale, strict=True)] for row in rotation]
    local[:3, 3] = [0.1, 0.2, 0.3]
    node = {"rotation": quaternion, "scale": [1.1, 0.7, -1.3], "translation": [0.1, 0.2, 0.3]}
    found = read_glb(nested(tmp_path, node)).positions
    np.testing.assert_array_equal(found, np.array([by_hand([local], point) for point in quad()[0]], F))


def test_frames_round_as_in_habitat_sim() -> None:
    frame = world_frame((0, 0, 1), (0, 1, 0))
    one, slip = F(1) + F(2**-23), F(2**-23)
    assert frame.tolist() == [[1, 0, 0, 0], [0, -slip, one, 0], [0, -one, -slip, 0], [0, 0, 0, 1]]
    assert world_frame((0, 1, 0), (0, 0, -1)).tolist() == np.eye(4).tolist()
    assert world_frame((0, -1, 0), (0, 0, -1)).tolist() == np.diag([-1, -1, 1, 1]).tolist()
    np.testing.assert_allclose(world_frame((0, 0, 3), (2, 0, 0))[:3, :3] @ [1, 0, 0], [0, 0, -1], atol=1e-6)


def test_a_quaternion_of_another_length_is_normalized(tmp_path: Path) -> None:
    found = read_glb(nested(tmp_path, {"rotation": [0, 0, 2, 2]})).positions
    np.testing.assert_allclose(found[:, :2], np.stack([-quad()[0][:, 1], quad()[0][:, 0]], axis=1), atol=1e-6)


def test_a_projective_matrix_divides() -> None:
    matrix = np.eye(4, dtype=F)
    matrix[3] = [0, 0, 0, 2]
    assert place(np.array([[2, 4, 6]], F), matrix).tolist() == [[1, 2, 3]]
    assert product(matrix, matrix)[3, 3] == 4


def test_mirrored_nodes_are_drawn_from_the_front_but_keep_their_winding_for_the_navmesh(tmp_path: Path) -> None:
    """Facts of habitat-sim: `joinHierarchy` takes indices as they are, drawing turns the front face instead."""
    writer = GlbWriter()
    positions, indices, _ = quad(2.0, 2.0)
    writer.mesh(positions, indices)
    writer.mesh(positions, indices, node={"scale": [-1, 1, 1], "translation": [9, 0, 0]})
    scene = load_scene(writer.save(tmp_path / "a.glb"))
    assert (scene.render.planes[:, 1] > 0.99).all()
    a, b, c = np.moveaxis(scene.vertices[scene.triangles], 1, 0)
    assert (np.cross(b - a, c - a)[:, 1] > 0).tolist() == [True, True, False, False]
    mesh, _ = build_polymesh(scene.vertices, scene.triangles, NavMeshSettings())
    low, high = mesh.verts[:, 0].min() * 0.05 - 2, mesh.verts[:, 0].max() * 0.05 - 2
    assert low > -2, "the body keeps its radius from the rim"
    assert high < 2, "the mirrored floor, 7 to 11 m from the origin, faces down and cannot be walked on"


def test_overflowing_transforms(tmp_path: Path) -> None:
    path = nested(tmp_path, {"scale": [1e200] * 3}, {"scale": [1e200] * 3})
    with pytest.raises(UsageError, match="beyond"):
        read_glb(path)


def test_a_node_of_two_parents_is_refused(tmp_path: Path) -> None:
    """64 levels of nodes with the next level twice among their children would be 2^64 instances."""
    writer = GlbWriter()
    writer.mesh(*quad()[:2])
    writer.root["nodes"] += [{"children": [k, k]} for k in range(64)]
    writer.root["scenes"][0]["nodes"] = [64]
    with pytest.raises(UsageError, match=r"nodes\[\d+\]: has more than one parent"):
        read_glb(writer.save(tmp_path / "a.glb"))


def test_without_scenes_every_tree_is_read_once(tmp_path: Path) -> None:
    path = nested(tmp_path, {}, {"translation": [1, 0, 0]})
    writer = GlbWriter()
    writer.mesh(*quad()[:2])
    del writer.root["scenes"]
    writer.root["nodes"].append({"children": [0]})
    assert len(read_glb(writer.save(path)).triangles) == 2
