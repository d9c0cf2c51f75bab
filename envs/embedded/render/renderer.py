"""RGB and metric depth of a scene on one CPU thread."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import kernel
from envs.embedded.render.glb import GlbScene
from envs.embedded.render.lanes import LANES
from envs.embedded.render.materials import Material
from envs.embedded.render.raster import TILE, Target, View, rasterize
from envs.embedded.render.scene import Scene, prepare
from envs.embedded.render.shade import shade
from envs.embedded.render.shrink import shrink
from vlnbench.errors import UsageError
from vlnbench.interfaces import Camera, Quaternion, Vec3

NEAR_M, FAR_M = 0.01, 1000.0


@dataclass(frozen=True)
class Frame:
    """rgb: (H, W, 3) uint8, black where nothing is hit. depth: (H, W) float32 meters along the optical axis, 0
    where nothing is hit within 1000 m. None where not asked for."""

    rgb: NDArray[np.uint8] | None
    depth: NDArray[np.float32] | None


class Renderer:
    """Draws one scene. Positions are world meters, rotations (x, y, z, w), wherever they are taken.

    Not for use by several threads at once: work buffers are kept between frames.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._targets: dict[tuple[int, int], Target] = {}

    def render(
        self, camera: Camera, position: Vec3, rotation: Quaternion, *, rgb: bool = True, depth: bool = True
    ) -> Frame:
        """View of `camera` on a body at floor point `position`, facing `rotation`."""
        eye = (position[0], position[1] + camera.height_m, position[2])
        half = math.radians(camera.pitch_deg) / 2
        pitch = _rotation(math.sin(half), 0.0, 0.0, math.cos(half))
        size = (camera.height, camera.width)
        return self._draw(size, camera.hfov, eye, _axes(rotation) @ pitch, rgb=rgb, depth=depth)

    def render_from(
        self,
        size: tuple[int, int],
        hfov: float,
        position: Vec3,
        rotation: Quaternion,
        *,
        rgb: bool = True,
        depth: bool = True,
    ) -> Frame:
        """View of `size` (height, width) and `hfov` degrees from a camera at `position`, facing `rotation`."""
        return self._draw(size, hfov, position, _axes(rotation), rgb=rgb, depth=depth)

    def _draw(
        self,
        size: tuple[int, int],
        hfov: float,
        eye: Vec3,
        axes: NDArray[np.float64],
        *,
        rgb: bool,
        depth: bool,
    ) -> Frame:
        height, width = size
        if min(size) < 1 or not 0 < hfov < 180:
            raise UsageError(f"camera: size {width}x{height}, hfov {hfov}: expected pixels > 0, 0 < hfov < 180")
        focal = float(0.5 * width / math.tan(math.radians(hfov) / 2))
        view = View(np.ascontiguousarray(axes.T), np.array(eye, np.float64), focal, NEAR_M, FAR_M)
        target = self._target(height, width)
        rasterize(self.scene.render, view, target)
        colors = depths = None
        if rgb:
            colors = np.empty((height, width, 3), np.uint8)
            shade(self.scene.render, view, target, colors)
        if depth:
            depths = np.empty((height, width), np.float32)
            _metric(target.inverse_depth, FAR_M, depths)
        return Frame(colors, depths)

    def _target(self, height: int, width: int) -> Target:
        if (height, width) not in self._targets:
            self._targets[height, width] = Target(
                np.empty((height, width + LANES), np.float32),
                np.empty((height, width + LANES), np.int32),
                np.empty((-(-height // TILE), -(-width // LANES)), np.float32),
                np.array([height, width], np.int64),
            )
        return self._targets[height, width]


def _axes(rotation: Quaternion) -> NDArray[np.float64]:
    x, y, z, w = rotation
    norm = math.sqrt(x * x + y * y + z * z + w * w)
    return _rotation(x / norm, y / norm, z / norm, w / norm)


def _rotation(x: float, y: float, z: float, w: float) -> NDArray[np.float64]:
    """(3, 3) matrix of a unit quaternion."""
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


@kernel
def _metric(inverse: NDArray[np.float32], far: float, depth: NDArray[np.float32]) -> None:
    """Depth in meters from inverse depth, 0 at the far plane."""
    limit = np.float32(1.0 / far)
    for row in range(depth.shape[0]):
        for k in range(depth.shape[1]):
            nearness = inverse[row, k]
            depth[row, k] = np.float32(1) / nearness if nearness > limit else np.float32(0)


def warm_up() -> Iterator[str]:
    """Compile every kernel of this package for the arguments of real use, yielding a label before each step."""
    yield "texture kernels"
    scene = prepare(
        GlbScene(
            positions=np.array([[-1, -1, -2], [1, -1, -2], [0, 1, -2]], np.float32),
            uvs=np.zeros((3, 2), np.float32),
            colors=None,
            triangles=np.array([[0, 1, 2]], np.int32),
            material_ids=np.zeros(1, np.int32),
            materials=(Material(0),),
            images=(np.zeros((2, 2, 3), np.uint8),),
        ),
        Path("warm-up"),
    )
    renderer, camera = Renderer(scene), Camera(16, 16, 90.0, 0.0)
    yield "rasterizer"
    renderer.render(camera, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0), rgb=False)
    yield "shading"
    frame = renderer.render(camera, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0), depth=False)
    yield "resizing"
    assert frame.rgb is not None
    shrink(frame.rgb, 8, 8)
