"""What a scene may unfold to: counted before anything is allocated, the honest side of every limit still read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from envs.embedded import limits
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.sample import square_room
from envs.embedded.render.glb import read_glb
from envs.embedded.render.scene import load_scene
from tests.envs.embedded.render.glb_writer import GlbWriter, quad
from vlnbench.errors import UsageError


def quads(count: int) -> GlbWriter:
    """`count` nodes with one mesh of two triangles and four vertices."""
    writer = GlbWriter()
    positions, indices, uvs = quad()
    writer.mesh(positions, indices, uvs=uvs, material=writer.material(np.zeros((8, 8, 3), np.uint8)))
    writer.root["nodes"] = [{"mesh": 0, "translation": [k, 0, 0]} for k in range(count)]
    writer.root["scenes"][0]["nodes"] = list(range(count))
    return writer


@pytest.mark.parametrize(
    ("name", "most", "message"),
    [
        ("MAX_TRIANGLES", 19, "meshes.0.: 20 triangles up to here"),
        ("MAX_PARTS", 9, "meshes.0.: 10 primitives up to here"),
        ("MAX_NODES", 9, "nodes: the scene has more than 9 nodes"),
        ("MAX_TEXELS", 63, "images.0.: the textures have 64 texels up to here"),
        ("MAX_TEXTURE_SIDE", 7, "images.0.: is 8 x 8 pixels, at most 7 a side are read"),
        ("MAX_GLB_BYTES", 500, "longer than the 500 bytes"),
        ("MAX_JSON_BYTES", 500, "JSON chunk: .* bytes, more than 500"),
        ("MAX_JSON_VALUES", 50, "JSON chunk: about .* values, more than 50"),
    ],
)
def test_one_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int, message: str
) -> None:
    path = quads(10).save(tmp_path / "a.glb")
    monkeypatch.setattr(limits, name, most)
    with pytest.raises(UsageError, match=message):
        read_glb(path)


@pytest.mark.parametrize(
    ("name", "most"),
    [("MAX_TRIANGLES", 20), ("MAX_PARTS", 10), ("MAX_NODES", 10), ("MAX_TEXELS", 64), ("MAX_TEXTURE_SIDE", 8)],
)
def test_what_reaches_a_limit_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    path = quads(10).save(tmp_path / "a.glb")
    monkeypatch.setattr(limits, name, most)
    assert len(read_glb(path).triangles) == 20


def test_vertices_without_triangles_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = GlbWriter()
    positions, indices, _ = quad()
    writer.mesh(np.tile(positions, (10, 1)), indices)
    monkeypatch.setattr(limits, "MAX_TRIANGLES", 13)
    with pytest.raises(UsageError, match=r"40 vertices up to here.*at most 39"):
        read_glb(writer.save(tmp_path / "a.glb"))


def test_a_large_file_may_have_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = quads(10).save(tmp_path / "a.glb")
    monkeypatch.setattr(limits, "FREE_TRIANGLES", 0)
    monkeypatch.setattr(limits, "BYTES_PER_TRIANGLE", path.stat().st_size / 20)
    assert len(read_glb(path).triangles) == 20
    monkeypatch.setattr(limits, "BYTES_PER_TRIANGLE", path.stat().st_size / 19)
    with pytest.raises(UsageError, match="triangles up to here"):
        read_glb(path)


def test_a_map_of_too_many_cells_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pathfinder = PathFinder.from_polymesh(*square_room())
    with pytest.raises(UsageError, match=r"top-down map: .* cells, more than 16777216"):
        pathfinder.get_topdown_view(1e-4, 0.0)


def test_a_mesh_below_which_too_many_cells_lie_is_refused(tmp_path: Path) -> None:
    from envs.embedded.navmesh.build import build_polymesh
    from envs.embedded.navmesh.tiles.settings import NavMeshSettings

    writer = GlbWriter()
    positions, indices, _ = quad(80, 80)
    writer.mesh(positions, np.tile(indices, 20))
    scene = load_scene(writer.save(tmp_path / "a.glb"))
    with pytest.raises(UsageError, match=r"the triangles cover .* cells"):
        build_polymesh(scene.vertices, scene.triangles, NavMeshSettings())
