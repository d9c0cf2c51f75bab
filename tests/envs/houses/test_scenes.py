from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest

from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.settings import NavMeshSettings
from envs.embedded.render.renderer import Renderer
from envs.embedded.render.scene import load_scene
from envs.houses import meshes
from envs.houses.furniture import FURNISHINGS
from envs.houses.hangings import painting, window
from envs.houses.house import House, make_house
from envs.houses.textures import COLORS
from tests.envs.houses.conftest import Generated
from vlnbench.interfaces import Camera

CAMERA = Camera(width=320, height=240, hfov=90.0, height_m=1.25)


def houses(tiny: Generated) -> list[tuple[House, Path]]:
    paths = sorted((tiny.root / "scene_datasets/houses").glob("*/*.glb"))
    return [(make_house(path.stem, tiny.config.seed), path) for path in paths]


@pytest.mark.parametrize("noun", sorted(FURNISHINGS))
def test_furniture_is_closed_and_fills_its_footprint(noun: str) -> None:
    what = FURNISHINGS[noun]
    for color in what.colors:
        parts = what.build(color)
        assert color in {part.color for part in parts}
        assert {part.color for part in parts} <= set(COLORS)
        assert all(meshes.volume(part.triangles) > 0 for part in parts)
    points = np.concatenate([part.triangles.reshape(-1, 3) for part in parts])
    low, high = points.min(axis=0), points.max(axis=0)
    half = np.array(what.size) / 2
    assert low[1] == pytest.approx(0.0, abs=1e-9)
    assert high[1] == pytest.approx(what.height, abs=0.06)
    assert (low[[0, 2]] >= -half - 0.04).all()
    assert (high[[0, 2]] <= half + 0.04).all()


def test_faces_point_outwards() -> None:
    solids = (
        meshes.box((0, 0, 0), (1, 2, 3)),
        meshes.cylinder(0.5, 0.0, 2.0),
        meshes.sphere(0.5, 1.0, (3.0, -2.0)),
        *(part.triangles for part in (*painting("red", 1.0, 0.5), *window(1.0, 1.0))),
    )
    for solid in solids:
        middle = solid.reshape(-1, 3).mean(axis=0)
        normals = np.cross(solid[:, 1] - solid[:, 0], solid[:, 2] - solid[:, 0])
        assert (np.einsum("ij,ij->i", normals, solid.mean(axis=1) - middle) > 0).all()
    assert meshes.volume(solids[0]) == pytest.approx(6.0)


def test_placing_keeps_volume_and_turns_the_front() -> None:
    solid = meshes.box((-0.5, 0, 0), (0.5, 1, 2))
    for facing in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        placed = meshes.place(solid, facing, 5.0, 7.0)
        assert meshes.volume(placed) == pytest.approx(2.0)
        middle = placed.reshape(-1, 3).mean(axis=0)
        assert (middle[0], middle[2]) == pytest.approx((5.0 + facing[0], 7.0 + facing[1]))


def test_file_is_small_and_in_the_frame_of_matterport(tiny: Generated) -> None:
    for house, path in houses(tiny):
        data = path.read_bytes()
        magic, version, length = struct.unpack_from("<4sII", data)
        assert (magic, version, length) == (b"glTF", 2, len(data))
        assert len(data) < 1_500_000
        document = json.loads(data[20 : 20 + struct.unpack_from("<I", data, 12)[0]])
        triangles = sum(
            document["accessors"][p["indices"]]["count"] // 3 for p in document["meshes"][0]["primitives"]
        )
        assert 5_000 <= triangles <= 40_000
        accessors = [
            document["accessors"][p["attributes"]["POSITION"]] for p in document["meshes"][0]["primitives"]
        ]
        low = np.min([a["min"] for a in accessors], axis=0)
        high = np.max([a["max"] for a in accessors], axis=0)
        bounds = house.plan.bounds.grown(0.09)
        assert low[2] >= -0.2
        assert high[2] <= 2.7
        assert (low[0], -high[1]) >= (bounds.x0, bounds.z0)
        assert (high[0], -low[1]) <= (bounds.x1, bounds.z1)
        assert all("KHR_materials_unlit" in m["extensions"] for m in document["materials"])


def test_the_navmesh_is_the_one_that_the_scene_file_gives(tiny: Generated, tmp_path: Path) -> None:
    _, path = houses(tiny)[0]
    scene, settings = load_scene(path), NavMeshSettings()
    built = PathFinder.from_polymesh(*build_polymesh(scene.vertices, scene.triangles, settings), settings)
    built.save(tmp_path / "again.navmesh")
    assert (tmp_path / "again.navmesh").read_bytes() == path.with_suffix(".navmesh").read_bytes()


def test_navmesh_is_one_floor_through_all_rooms_and_doors(tiny: Generated) -> None:
    for house, path in houses(tiny):
        pathfinder = PathFinder.load(path.with_suffix(".navmesh"))
        assert pathfinder.settings.matches(NavMeshSettings())
        areas = [pathfinder.island_area(i) for i in range(pathfinder.num_islands)]
        floor = int(np.argmax(areas))
        assert areas[floor] > 0.9 * sum(areas)
        plan = house.plan
        for door in plan.doors:
            ends = []
            for room in door.rooms:
                nx, nz = door.normal(room)
                ends.append((door.center[0] + 0.7 * nx, 0.0, door.center[1] + 0.7 * nz))
            assert all(pathfinder.get_island(end) == floor for end in ends)
            path_through = pathfinder.find_path(*ends)
            assert path_through.geodesic_distance == pytest.approx(1.4, abs=0.05)
            assert abs(float(pathfinder.snap_point(ends[0])[1])) < 0.05


def test_rooms_are_closed_and_show_their_colors(tiny: Generated) -> None:
    house, path = houses(tiny)[0]
    renderer = Renderer(load_scene(path))
    for room, rect in enumerate(house.plan.rooms):
        x, z = rect.center
        for yaw in (0.3, 1.9, 3.5, 5.1):
            frame = renderer.render(CAMERA, (x, 0.0, z), (0.0, math.sin(yaw / 2), 0.0, math.cos(yaw / 2)))
            assert frame.rgb is not None
            assert frame.depth is not None
            assert (frame.depth == 0).mean() < 1e-4, f"room {room} has holes"
            assert frame.depth.max() < 20.0
            assert len(np.unique(frame.rgb.reshape(-1, 3), axis=0)) > 50


def test_landmarks_look_like_their_color(tiny: Generated) -> None:
    house, path = houses(tiny)[0]
    renderer = Renderer(load_scene(path))
    pathfinder = PathFinder.load(path.with_suffix(".navmesh"))
    seen = 0
    for item in house.items:
        if item.noun not in ("ball", "barrel", "vase", "crate") or item.color in ("white", "black", "gray"):
            continue
        nx, nz = item.facing
        eye = pathfinder.snap_point((item.x + 1.2 * nx, 0.0, item.z + 1.2 * nz))
        yaw = math.atan2(-(item.x - eye[0]), -(item.z - eye[2]))
        rotation = (0.0, math.sin(yaw / 2), 0.0, math.cos(yaw / 2))
        frame = renderer.render(Camera(320, 240, 90.0, 1.25, pitch_deg=-35.0), tuple(eye), rotation)
        assert frame.rgb is not None
        wanted = np.array(COLORS[item.color], dtype=np.float64)
        pixels = frame.rgb.reshape(-1, 3).astype(np.float64)
        brightness = pixels @ wanted / (wanted @ wanted)
        like = np.abs(pixels - brightness[:, None] * wanted).max(axis=1) < 12
        assert (like & (brightness > 0.4)).mean() > 0.01, item
        seen += 1
    assert seen >= 2
