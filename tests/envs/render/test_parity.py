"""Agreement with renders recorded from habitat-sim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from envs.embedded.render import Renderer, load_scene
from vlnbench.interfaces import Camera

SCENES = {
    "house_a": "house_a.glb",
    "simple_room": "simple_room.glb",
    "corridor_1LXtFkjw3qL": "1LXtFkjw3qL.glb",
}
MATERIAL = 204
"""The one colour of simple_room; what differs from it there is a slab without material."""


class Difference(NamedTuple):
    """Of one image: median depth error in metres, shares of pixels, mean absolute RGB difference of 255."""

    depth_median: float
    depth_over_5cm: float
    hit_or_miss: float
    rgb: float


@pytest.fixture(scope="module", params=SCENES)
def differences(request: pytest.FixtureRequest, shared: Path) -> list[Difference]:
    folder = shared / "goldens" / "habitat_sim" / request.param
    recorded = json.loads((folder / "renders" / "poses.json").read_text())
    depths = np.load(folder / "renders" / "depth.npz")
    renderer = Renderer(load_scene(folder / SCENES[request.param]))
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
                )
            )
    assert len(found) == 58
    return found


def test_depth(differences: list[Difference]) -> None:
    # The record is float16: 0.5 mm at 1 m, so the median shows its rounding.
    assert max(image.depth_median for image in differences) < 1e-3
    assert max(image.depth_over_5cm for image in differences) < 2e-4
    assert np.mean([image.depth_over_5cm for image in differences]) < 2e-5


def test_background(differences: list[Difference]) -> None:
    assert max(image.hit_or_miss for image in differences) < 1e-4


def test_rgb(differences: list[Difference]) -> None:
    assert max(image.rgb for image in differences) < 0.25


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
