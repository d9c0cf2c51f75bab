"""Scene files, navmeshes and pictures of houses."""

from __future__ import annotations

import hashlib
import io
import json
import math
import random
import struct
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.motion import advance
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.render.renderer import Renderer
from envs.embedded.render.scene import load_scene
from envs.houses.model.hangings import painting, window
from envs.houses.model.lighting import Light, shade
from envs.houses.model.model import house_primitives, parts_primitive
from envs.houses.options import HousesConfig
from envs.houses.plan.catalog import FURNISHINGS, LANDMARKS, MAKES, Furnishing
from envs.houses.plan.house import make_house
from envs.houses.plan.layout import STOREY_M, Door
from envs.houses.shapes import meshes
from envs.houses.shapes.glb_writer import glb_bytes
from envs.houses.shapes.meshes import Part
from envs.houses.shapes.textures import COLORS
from tests.envs.houses.conftest import Generated
from tests.envs.houses.scenes import Built, build
from vlnbench.interfaces import Camera

CAMERA = Camera(width=320, height=240, hfov=90.0, height_m=1.25)
LOOKS = {"rooms_min": 6, "rooms_max": 9, "landmark_repetition": 0.2, "distractors": 1}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    """One house of one storey, two of two storeys."""
    folder = tmp_path_factory.mktemp("scenes")
    return [
        build(folder, name, HousesConfig(seed=5, storeys_share=share, **LOOKS))
        for name, share in (("low", 0.0), ("high", 1.0), ("higher", 1.0))
    ]


@pytest.mark.parametrize(
    "what",
    [make for noun in sorted(MAKES) for make in MAKES[noun]],
    ids=lambda what: f"{what.noun} {what.make}",
)
def test_furniture_is_closed_and_fills_its_footprint(what: Furnishing) -> None:
    for color in what.colors:
        parts = what.build(color)
        assert color in {part.color for part in parts}
        assert {part.color for part in parts} <= set(COLORS)
        assert all(meshes.volume(part.triangles) > 0 for part in parts)
    points = np.concatenate([part.triangles.reshape(-1, 3) for part in parts])
    low, high = points.min(axis=0), points.max(axis=0)
    half = np.array(what.size) / 2
    assert low[1] == pytest.approx(0.0, abs=0.02)
    assert high[1] == pytest.approx(what.height, abs=0.06)
    assert (low[[0, 2]] >= -half - 0.04).all()
    assert (high[[0, 2]] <= half + 0.04).all()


def test_faces_point_outwards() -> None:
    solids = (
        meshes.box((0, 0, 0), (1, 2, 3)),
        meshes.cylinder(0.5, 0.0, 2.0),
        meshes.sphere(0.5, 1.0, (3.0, -2.0)),
        meshes.beam((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 0.1),
        meshes.beam((0.0, 0.0, 0.0), (0.1, 1.0, 0.0), 0.1),
        meshes.prism(((0, 0), (1, 0), (1, 1), (0, 1)), 0.0, 0.5),
        meshes.lying(meshes.cylinder(0.5, 0.0, 2.0)),
        *(part.triangles for part in (*painting("red", 1.0, 0.5), *window(1.0, 1.0, "blue"))),
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


def test_file_is_small_and_in_the_frame_of_matterport(built: list[Built]) -> None:
    for house, data in ((b.house, b.path.read_bytes()) for b in built):
        magic, version, length = struct.unpack_from("<4sII", data)
        assert (magic, version, length) == (b"glTF", 2, len(data))
        assert len(data) < 2_000_000
        document = json.loads(data[20 : 20 + struct.unpack_from("<I", data, 12)[0]])
        accessors, primitives = document["accessors"], document["meshes"][0]["primitives"]
        assert 5_000 <= sum(accessors[p["indices"]]["count"] // 3 for p in primitives) <= 40_000
        positions = [accessors[p["attributes"]["POSITION"]] for p in primitives]
        low, high = np.min([a["min"] for a in positions], axis=0), np.max([a["max"] for a in positions], axis=0)
        bounds = house.plan.bounds.grown(0.09)
        assert low[2] == pytest.approx(-0.18)
        assert high[2] == pytest.approx(2.6 + (house.plan.n_storeys - 1) * STOREY_M, abs=0.05)
        assert (low[0], -high[1]) >= (bounds.x0, bounds.z0)
        assert (high[0], -low[1]) <= (bounds.x1, bounds.z1)
        assert all("KHR_materials_unlit" in m["extensions"] for m in document["materials"])
        for primitive in primitives:
            colors = accessors[primitive["attributes"]["COLOR_0"]]
            assert (colors["componentType"], colors["type"], colors["normalized"]) == (5121, "VEC4", True)
            assert colors["count"] == accessors[primitive["attributes"]["POSITION"]]["count"]


def test_geometry_and_light_are_the_same_everywhere() -> None:
    """The digest changes with every change of the generator's houses, and so must the version of the benchmark.

    Pixels are compared, not compressed images, which differ between releases of zlib.
    """
    house = make_house("x", HousesConfig(seed=1, storeys_share=1.0, **LOOKS))
    digest = hashlib.sha256()
    for primitive in house_primitives(house, random.Random("x")):
        for array in (primitive.positions, primitive.uv, primitive.colors, primitive.triangles):
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(np.asarray(Image.open(io.BytesIO(primitive.png))).tobytes())
    assert digest.hexdigest() == "cc5f998dacd968bc4c32c07bea9e8aa4c6e4bc1a8563101069cd962e19f3d791"


def test_the_navmesh_is_the_one_that_the_scene_file_gives(tiny: Generated, tmp_path: Path) -> None:
    path = min((tiny.root / "scene_datasets/houses").glob("*/*.glb"))
    scene, settings = load_scene(path), NavMeshSettings()
    built = PathFinder.from_polymesh(*build_polymesh(scene.vertices, scene.triangles, settings), settings)
    built.save(tmp_path / "again.navmesh")
    assert (tmp_path / "again.navmesh").read_bytes() == path.with_suffix(".navmesh").read_bytes()


def test_the_navmesh_is_one_island_through_all_rooms_doors_and_ramps(built: list[Built]) -> None:
    for house, pathfinder in ((b.house, b.pathfinder) for b in built):
        plan = house.plan
        assert pathfinder.num_islands == 1
        for door in plan.doors:
            ends = [door_step(door, room, 0.7) for room in door.rooms]
            assert all(pathfinder.get_island(end) == 0 for end in ends)
            assert pathfinder.find_path(*ends).geodesic_distance == pytest.approx(1.4, abs=0.05)
            assert abs(float(pathfinder.snap_point(ends[0])[1]) - door.y) < 0.15
        for ramp in plan.ramps:
            length = pathfinder.geodesic_distance(
                pathfinder.snap_point(ramp.bottom), pathfinder.snap_point(ramp.top)
            )
            assert length == pytest.approx(math.dist(ramp.bottom, ramp.top), abs=0.12)
            for share in (0.1, 0.3, 0.5, 0.7, 0.9):
                x, y, z = (a + share * (b - a) for a, b in zip(ramp.bottom, ramp.top, strict=True))
                assert float(pathfinder.snap_point((x, y, z))[1]) == pytest.approx(ramp.height_at(x, z), abs=0.2)


def door_step(door: Door, room: int, reach: float) -> tuple[float, float, float]:
    nx, nz = door.normal(room)
    return door.center[0] + reach * nx, door.y, door.center[1] + reach * nz


def test_a_body_can_step_on_from_everywhere(built: list[Built]) -> None:
    rng = random.Random(0)
    for house, pathfinder in ((b.house, b.pathfinder) for b in built):
        for _ in range(150):
            room = rng.randrange(len(house.plan.rooms))
            rect = house.plan.rooms[room]
            x, z = rect.x0 + rng.random() * rect.width, rect.z0 + rng.random() * rect.depth
            start = pathfinder.snap_point((x, house.plan.floor_m(room), z))
            steps = []
            for yaw in range(0, 360, 30):
                half = math.radians(yaw) / 2
                turned = np.array((0.0, math.sin(half), 0.0, math.cos(half)), np.float32)
                end, _, _ = advance(pathfinder, start, turned, 1, 0.25, 15.0, sliding=True)
                steps.append(math.dist(start, end))
            assert max(steps) > 0.2, start


@pytest.mark.slow
def test_rooms_are_closed_and_show_their_colors(built: list[Built]) -> None:
    for house, renderer in ((b.house, b.renderer) for b in built[:2]):
        for room, rect in enumerate(house.plan.rooms):
            x, z = rect.center
            for yaw in (0.3, 1.9, 3.5, 5.1):
                frame = view(renderer, (x, house.plan.floor_m(room), z), yaw)
                assert (frame.depth == 0).mean() < 1e-4, f"room {room} has holes"
                assert frame.depth.max() < 20.0
                assert len(np.unique(frame.rgb.reshape(-1, 3), axis=0)) > 25


def view(renderer: Renderer, position: tuple[float, float, float], yaw: float, camera: Camera = CAMERA) -> Any:
    return renderer.render(camera, position, (0.0, math.sin(yaw / 2), 0.0, math.cos(yaw / 2)))


@pytest.mark.slow
def test_landmarks_look_like_their_color(built: list[Built]) -> None:
    seen = 0
    for house, renderer, pathfinder in ((b.house, b.renderer, b.pathfinder) for b in built):
        for item in house.items:
            plain = item.noun in ("ball", "barrel", "vase", "crate", "pyramid", "tent", "chair", "hydrant")
            if not plain or item.color in ("white", "black"):
                continue
            nx, nz = item.facing
            eye = pathfinder.snap_point((item.x + 1.2 * nx, item.y, item.z + 1.2 * nz))
            yaw = math.atan2(-(item.x - eye[0]), -(item.z - eye[2]))
            frame = view(renderer, tuple(eye), yaw, Camera(320, 240, 90.0, 1.25, pitch_deg=-35.0))
            assert (likeness(frame.rgb, item.color) > 0.3).mean() > 0.01, item
            seen += 1
    assert seen >= 3


def likeness(rgb: NDArray[np.uint8], color: str) -> NDArray[np.float64]:
    """Brightness of pixels that have the hue of a color, 0 for the others."""
    wanted = np.array(COLORS[color], dtype=np.float64)
    pixels = rgb.reshape(-1, 3).astype(np.float64)
    brightness = pixels @ wanted / (wanted @ wanted)
    like = np.abs(pixels - brightness[:, None] * wanted).max(axis=1) < 14
    return np.where(like, brightness, 0.0)


def test_landmark_nouns_have_outlines_of_their_own(tmp_path: Path) -> None:
    """At 96 x 96 pixels from 1.6 m no two nouns cover nearly the same pixels of the image."""
    light = Light((1.0, 2.4, 1.5), (0.0, 0.0, 0.0), 0.7, 2.6, (1.0, 1.0, 1.0))
    floor = Part(meshes.box((-0.01, -0.02, -0.01), (0.01, -0.01, 0.01)), "red")  # nothing around the object
    outlines = {}
    for noun in LANDMARKS:
        parts = [*FURNISHINGS[noun].build("red" if "red" in FURNISHINGS[noun].colors else "blue"), floor]
        path = tmp_path / "object.glb"
        path.write_bytes(glb_bytes([parts_primitive(parts, [light])], noun))
        frame = view(
            Renderer(load_scene(path)), (0.55, 0.0, 1.5), 0.35, Camera(96, 96, 79.0, 1.25, pitch_deg=-22.0)
        )
        outlines[noun] = frame.depth > 0
        assert outlines[noun].sum() > 120, noun
    for a, b in combinations(outlines, 2):
        both, either = (outlines[a] & outlines[b]).sum(), (outlines[a] | outlines[b]).sum()
        assert both / either < 0.9, (a, b)


def test_colors_of_landmarks_are_far_apart() -> None:
    names = sorted({color for noun in LANDMARKS for color in FURNISHINGS[noun].colors})
    for a, b in combinations(names, 2):
        assert math.dist(COLORS[a], COLORS[b]) > 75.0, (a, b)


def test_light_falls_off_and_is_shaded() -> None:
    up = np.array([[0.0, 1.0, 0.0]])
    lamp = Light((0.0, 2.5, 0.0), (0.0, 0.0, 0.0), 0.6, 2.6, (1.0, 1.0, 1.0))
    none = np.empty((0, 6))
    table = np.array([[0.4, 0.0, -0.5, 1.4, 0.8, 0.5]])

    def at(x: float, obstacles: NDArray[np.float64] = none, normals: NDArray[np.float64] = up) -> float:
        return float(shade(np.array([[x, 0.0, 0.0]]), normals, [lamp], obstacles)[0, 0])

    assert at(0.0) > at(1.5) > at(3.0) > at(6.0) >= 0.3
    assert at(1.6, table) < at(1.6)
    assert at(0.2, table) == at(0.2)
    assert at(1.5, normals=-up) < at(1.5)
    window = Light((0.0, 1.5, 0.0), (1.0, 0.0, 0.0), 0.7, 2.0, (1.0, 1.0, 1.0))
    sides = shade(np.array([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), np.repeat(up, 2, axis=0), [window], none)
    assert sides[0, 0] < sides[1, 0]


def test_rooms_look_different_by_position(built: list[Built]) -> None:
    for house in (b.house for b in built):
        floors = [p for p in house_primitives(house, random.Random(1)) if p.name.startswith("floor")]
        for floor in floors:
            brightness = floor.colors.mean(axis=1) / 255.0
            assert 0.3 <= brightness.min() <= brightness.max() <= 1.0
            assert brightness.std() > 0.03
