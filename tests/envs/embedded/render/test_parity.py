"""Agreement with renders recorded from habitat-sim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from benchmarks.envs.render import dense
from envs.embedded.render import Renderer, load_scene
from envs.embedded.render.glb import read_glb
from envs.embedded.render.scene import prepare
from tests.envs.embedded.render.glb_writer import GlbWriter, quad
from vlnbench.interfaces import Camera

SCENES = {
    "house_a": "house_a.glb",
    "simple_room": "simple_room.glb",
    "corridor_1LXtFkjw3qL": "1LXtFkjw3qL.glb",
}
DENSE = "house_a, 1.3 million triangles"
"""The same surfaces, and so the same frames, with every triangle cut into 25."""

MATERIAL = 204
"""The one color of simple_room; what differs from it there is a slab without material."""


class Difference(NamedTuple):
    """Of one image: median depth error in meters, shares of pixels, mean absolute RGB difference of 255 and share
    of pixels whose color differs by more than 1 on average."""

    depth_median: float
    depth_over_5cm: float
    hit_or_miss: float
    rgb: float
    rgb_over_1: float


@pytest.fixture(scope="module", params=[*SCENES, pytest.param(DENSE, marks=pytest.mark.slow)])
def differences(request: pytest.FixtureRequest, shared: Path) -> list[Difference]:
    folder = shared / "goldens" / "habitat_sim" / request.param.partition(",")[0]
    path = folder / SCENES[folder.name]
    recorded = json.loads((folder / "renders" / "poses.json").read_text())
    depths = np.load(folder / "renders" / "depth.npz")
    scene = prepare(dense(read_glb(path), 5), path) if request.param == DENSE else load_scene(path)
    renderer = Renderer(scene)
    found = []
    for name, camera in recorded["cameras"].items():
        poses = [pose["cameras"][name] for pose in recorded["poses"] if name in pose["cameras"]]
        for pose, depth in zip(poses, depths[name].astype(np.float32), strict=True):
            size = (camera["height"], camera["width"])
            frame = renderer.render_from(size, camera["hfov_deg"], pose["position"], pose["rotation_xyzw"])
            assert frame.rgb is not None
            assert frame.depth is not None
            rgb = np.asarray(Image.open(folder / "renders" / pose["rgb"]), np.int16)
            off = np.abs(frame.rgb.astype(np.int16) - rgb).mean(axis=-1)
            if request.param == "simple_room":
                off = off[np.isin(rgb, (0, MATERIAL)).all(axis=-1)]
            error = np.abs(frame.depth - depth)
            found.append(
                Difference(
                    float(np.median(error)),
                    float((error > 0.05).mean()),
                    float(((frame.depth == 0) != (depth == 0)).mean()),
                    float(off.mean()),
                    float((off > 1).mean()),
                )
            )
    assert len(found) == 58
    return found


def test_depth(differences: list[Difference]) -> None:
    # The record is float16: 0.5 mm at 1 m, so the median shows its rounding.
    assert max(image.depth_median for image in differences) < 4.8e-4
    assert max(image.depth_over_5cm for image in differences) < 1.5e-4
    assert np.mean([image.depth_over_5cm for image in differences]) < 6e-6


def test_background(differences: list[Difference]) -> None:
    assert max(image.hit_or_miss for image in differences) < 2.5e-5


def test_rgb(differences: list[Difference]) -> None:
    assert max(image.rgb for image in differences) < 0.13
    assert max(image.rgb_over_1 for image in differences) < 0.005


CORNERS = [[1.0, 0.0, 0.2, 1.0], [0.2, 1.0, 0.4, 0.5], [0.0, 0.3, 1.0, 0.0], [0.8, 0.7, 0.1, 0.3]]
"""Vertex colors of a wall 4 m wide, 3 m ahead, from the lower left corner counter-clockwise."""


@pytest.mark.parametrize(
    ("scale", "kind", "factor", "recorded"),
    [
        (1, "f", None, [[187, 147, 54], [29, 68, 232], [119, 41, 160], [193, 30, 96], [61, 226, 109]]),
        (255, "B", None, [[187, 146, 55], [29, 67, 232], [119, 41, 160], [193, 30, 96], [61, 226, 109]]),
        (65535, "H", None, [[187, 147, 54], [29, 68, 232], [119, 41, 160], [193, 30, 96], [61, 226, 109]]),
        (
            2,
            "f",
            (0.5, 0.8, 1, 1),
            [[187, 235, 109], [29, 109, 255], [119, 66, 255], [193, 48, 192], [61, 255, 218]],
        ),
    ],
)
def test_vertex_colors(tmp_path: Path, scale: int, kind: str, factor: Any, recorded: list[list[int]]) -> None:
    """Multiplied by the base color in floating point, the product limited to 1, alpha ignored: pixels that
    habitat-sim 0.3.3 gave for these files."""
    writer = GlbWriter()
    positions, indices, uvs = quad(2, 2)
    scaled = np.array(CORNERS) * scale
    colors = scaled.astype(kind) if kind == "f" else np.round(scaled).astype(kind)
    z_up = np.stack([positions[:, 0], np.full(4, 3.0), positions[:, 1]], axis=1)
    writer.mesh(z_up, indices, uvs=uvs, colors=colors, material=writer.material(factor=factor))
    renderer = Renderer(load_scene(writer.save(tmp_path / "a.glb")))
    rgb = renderer.render(Camera(64, 64, 90.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)).rgb
    assert rgb is not None
    rows, columns = [15, 15, 30, 40, 50], [15, 48, 33, 20, 50]
    assert np.abs(rgb[rows, columns].astype(int) - recorded).max() <= 1


def test_full_precision_depth(shared: Path) -> None:
    folder = shared / "goldens" / "habitat_sim" / "house_a"
    recorded = json.loads((folder / "renders" / "poses.json").read_text())
    depths = np.load(folder / "renders" / "depth.npz")["224_h125_float32_first3"]
    renderer = Renderer(load_scene(folder / "house_a.glb"))
    for pose, depth in zip(recorded["poses"], depths, strict=False):
        view = pose["cameras"]["224_h125"]
        frame = renderer.render_from((224, 224), 90.0, view["position"], view["rotation_xyzw"], rgb=False)
        assert frame.rgb is None
        assert frame.depth is not None
        relative = np.abs(frame.depth - depth) / np.maximum(depth, 1e-3)
        assert np.quantile(relative, 0.999) < 1e-3
        assert np.median(relative) < 1e-5


def test_body_pose_and_pitch_give_the_recorded_sensor_pose(shared: Path) -> None:
    folder = shared / "goldens" / "habitat_sim" / "house_a"
    recorded = json.loads((folder / "renders" / "poses.json").read_text())
    renderer = Renderer(load_scene(folder / "house_a.glb"))
    pose = recorded["poses"][1]
    yaw = pose["agent_yaw"]
    body = (0.0, float(np.sin(yaw / 2)), 0.0, float(np.cos(yaw / 2)))
    camera = Camera(224, 224, 90.0, 0.88, -30.0)
    ours = renderer.render(camera, tuple(pose["agent_position"]), body, rgb=False).depth
    view = pose["cameras"]["224_h088_down30"]
    theirs = renderer.render_from((224, 224), 90.0, view["position"], view["rotation_xyzw"], rgb=False).depth
    assert ours is not None
    assert theirs is not None
    assert np.quantile(np.abs(ours - theirs), 0.999) < 1e-4
