from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from envs.embedded.render import Renderer, warm_up
from envs.embedded.render.glb import GlbScene
from envs.embedded.render.materials import CLAMP, MIRROR, NEAREST_MIP, NO_MIPS, REPEAT, Material, Sampler
from envs.embedded.render.scene import prepare
from tests.envs.embedded.render.glb_writer import quad
from vlnbench.errors import UsageError
from vlnbench.interfaces import Camera

IDENTITY = (0.0, 0.0, 0.0, 1.0)
ORIGIN = (0.0, 0.0, 0.0)
SQUARE = Camera(64, 64, 90.0, 0.0)


def renderer_of(
    positions: Any,
    triangles: Any,
    uvs: Any = None,
    colors: Any = None,
    image: NDArray[np.uint8] | None = None,
    sampler: Sampler | None = None,
) -> Renderer:
    positions = np.asarray(positions, np.float32)
    triangles = np.asarray(triangles, np.int32).reshape(-1, 3)
    return Renderer(
        prepare(
            GlbScene(
                positions=positions,
                uvs=np.zeros((len(positions), 2), np.float32) if uvs is None else np.asarray(uvs, np.float32),
                colors=None if colors is None else np.asarray(colors, np.float32),
                triangles=triangles,
                material_ids=np.zeros(len(triangles), np.int32),
                materials=(Material(-1 if image is None else 0, sampler=sampler or Sampler()),),
                images=() if image is None else (image,),
            ),
            Path("test"),
        )
    )


def wall(distance: float = 2.0, half: float = 1.0, **fields: Any) -> Renderer:
    positions, indices, uvs = quad(half, half)
    positions[:, 2] = -distance
    return renderer_of(positions, indices, uvs=fields.pop("scale", 1.0) * uvs, **fields)


def draw(
    renderer: Renderer, camera: Camera = SQUARE, position: Any = ORIGIN, rotation: Any = IDENTITY
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    frame = renderer.render(camera, position, rotation)
    assert frame.rgb is not None
    assert frame.depth is not None
    return frame.rgb.astype(np.int64), frame.depth


def test_wall_is_planar_and_as_wide_as_it_should_be() -> None:
    rgb, depth = draw(wall())
    inside = np.zeros((64, 64), bool)
    inside[16:48, 16:48] = True  # 1 m at 2 m is half of the half-width
    assert np.allclose(depth[inside], 2.0, rtol=1e-6)
    assert (depth[~inside] == 0).all()
    assert (rgb[inside] == 255).all()
    assert (rgb[~inside] == 0).all()


@pytest.mark.parametrize(("width", "height", "hfov"), [(640, 480, 79.0), (31, 17, 60.0), (1, 1, 90.0)])
def test_image_sizes(width: int, height: int, hfov: float) -> None:
    rgb, depth = draw(wall(3.0), Camera(width, height, hfov, 0.0))
    assert rgb.shape == (height, width, 3)
    focal = width / 2 / math.tan(math.radians(hfov) / 2)
    columns = np.abs(np.arange(width) + 0.5 - width / 2) < focal / 3
    rows = np.abs(np.arange(height) + 0.5 - height / 2) < focal / 3
    assert np.array_equal(depth > 0, rows[:, None] & columns)


def test_only_what_is_asked_for_is_rendered() -> None:
    renderer = wall()
    both = renderer.render(SQUARE, ORIGIN, IDENTITY)
    depth = renderer.render(SQUARE, ORIGIN, IDENTITY, rgb=False)
    rgb = renderer.render(SQUARE, ORIGIN, IDENTITY, depth=False)
    assert depth.rgb is None
    assert rgb.depth is None
    assert np.array_equal(both.depth, depth.depth)
    assert np.array_equal(both.rgb, rgb.rgb)


def test_what_is_not_asked_for_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError

    scene = wall()
    with monkeypatch.context() as patch:
        patch.setattr("envs.embedded.render.renderer.shade", refuse)
        scene.render(SQUARE, ORIGIN, IDENTITY, rgb=False)
    with monkeypatch.context() as patch:
        patch.setattr("envs.embedded.render.renderer._metric", refuse)
        scene.render(SQUARE, ORIGIN, IDENTITY, depth=False)


def test_frames_do_not_share_memory() -> None:
    renderer = wall()
    first = renderer.render(SQUARE, ORIGIN, IDENTITY)
    assert first.rgb is not None
    kept = first.rgb.copy()
    renderer.render(SQUARE, (0.0, 0.0, 5.0), IDENTITY)
    assert np.array_equal(first.rgb, kept)


def test_back_faces_and_things_behind_the_camera_are_not_seen() -> None:
    turned = (0.0, 1.0, 0.0, 0.0)
    assert (draw(wall(), rotation=turned)[1] == 0).all()
    assert (draw(wall(), position=(0.0, 0.0, -4.0), rotation=turned)[1] == 0).all()


def test_camera_height_yaw_and_pitch() -> None:
    # A wall on the left (-x), seen by a body that turned left by 90 degrees; the camera looks up by 45 degrees.
    positions = np.array([[-2, 1, 1], [-2, 1, -1], [-2, 3, -1], [-2, 3, 1]])
    renderer = renderer_of(positions, [0, 1, 2, 0, 2, 3])
    left = (0.0, math.sqrt(0.5), 0.0, math.sqrt(0.5))
    _, depth = draw(renderer, Camera(63, 63, 90.0, 1.5), (0.0, 0.5, 0.0), left)
    assert depth[31, 31] == pytest.approx(2.0)
    assert np.array_equal(depth > 0, depth[::-1, ::-1] > 0), "centerd on the wall"
    _, tilted = draw(renderer, Camera(63, 63, 90.0, 0.0, 45.0), ORIGIN, left)
    assert tilted[31, 31] == pytest.approx(math.sqrt(8.0))


def test_far_and_near_planes() -> None:
    assert (draw(wall(999.0, 5000.0))[1] > 0).all()
    assert (draw(wall(1001.0, 5000.0))[1] == 0).all()
    assert (draw(wall(0.0101))[1] > 0).all()
    assert (draw(wall(0.0099))[1] == 0).all()


def test_floor_is_clipped_at_the_near_plane() -> None:
    floor = [[-50, 0, 50], [50, 0, 50], [50, 0, -50], [-50, 0, -50]]
    _, depth = draw(renderer_of(floor, [0, 1, 2, 0, 2, 3]), Camera(65, 65, 120.0, 1.0))
    focal = 65 / 2 / math.tan(math.radians(60))
    below = np.arange(65) + 0.5 - 32.5
    expected = np.where(below > 0, focal / np.maximum(below, 1e-9), 0)
    expected[expected > 50] = 0
    assert np.allclose(depth, expected[:, None], rtol=1e-5)


def checker(n: int) -> NDArray[np.uint8]:
    cells = (np.add.outer(np.arange(n), np.arange(n)) % 2 * 255).astype(np.uint8)
    return np.repeat(cells[..., None], 3, axis=2)


def test_constant_texture_passes_unchanged() -> None:
    image = np.full((8, 8, 3), (200, 100, 50), np.uint8)
    for distance in (0.5, 2.0, 30.0):
        rgb, depth = draw(wall(distance, image=image, scale=7.3))
        assert (rgb[depth > 0] == (200, 100, 50)).all()


def test_far_checker_is_gray() -> None:
    rgb, depth = draw(wall(20.0, 20.0, image=checker(64), scale=64.0))
    assert (depth > 0).all()
    assert np.abs(rgb - 128).max() <= 1


def test_magnified_texture_is_bilinear() -> None:
    image = np.zeros((1, 2, 3), np.uint8)
    image[0, 1] = 200
    camera = Camera(64, 64, 2 * math.degrees(math.atan(0.5)), 0.0)
    for wrap in (REPEAT, CLAMP, MIRROR):
        rgb, _ = draw(wall(image=image, sampler=Sampler((wrap, wrap))), camera)
        u = 2 * (np.arange(64) + 0.5) / 64 - 0.5
        inside = np.clip(u, 0, 1)
        expected = np.minimum(np.abs(u), np.abs(2 - u)) if wrap == REPEAT else inside
        assert np.abs(rgb[10, :, 0] - 200 * expected).max() <= 1.5


def test_texture_rows_start_at_the_top() -> None:
    image = np.zeros((64, 64, 3), np.uint8)
    image[:32] = (255, 0, 0)
    image[32:, :32] = (0, 255, 0)
    rgb, _ = draw(wall(1.0, image=image))
    assert rgb[8, 8].tolist() == [255, 0, 0]
    assert rgb[56, 8].tolist() == [0, 255, 0]
    assert rgb[56, 56].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("wrap", "expected"), [(REPEAT, 40), (CLAMP, 200), (MIRROR, 200)])
def test_wrap_modes(wrap: int, expected: int) -> None:
    image = np.full((16, 16, 3), 40, np.uint8)
    image[:, 8:] = 200
    rgb, _ = draw(wall(1.0, image=image, scale=2.0, sampler=Sampler((wrap, wrap))))
    assert rgb[32, 8, 0] == 40
    assert rgb[32, 40, 0] == expected, "u = 1.27"


def test_nearest_filters() -> None:
    sampler = Sampler(nearest=(True, True), mips=NO_MIPS)
    near, _ = draw(wall(1.0, image=checker(4), sampler=sampler))
    assert np.array_equal(near[..., 0], np.kron(checker(4)[..., 0], np.ones((16, 16), int)))
    far, depth = draw(wall(30.0, 30.0, image=checker(64), scale=50.0, sampler=sampler))
    assert np.isin(far[depth > 0], (0, 255)).all()
    mixed = Sampler(nearest=(True, False))
    assert np.array_equal(draw(wall(1.0, image=checker(4), sampler=mixed))[0], near)
    gray, _ = draw(wall(20.0, 20.0, image=checker(64), scale=64.0, sampler=mixed))
    assert np.abs(gray - 128).max() <= 1
    levels = Sampler(mips=NEAREST_MIP)
    gray, depth = draw(wall(20.0, 20.0, image=checker(64), scale=64.0, sampler=levels))
    assert np.abs(gray - 128).max() <= 1


def test_mip_level_is_that_of_the_longer_derivative() -> None:
    # Level k of this texture is the constant of its k-th 2x2 average: stripes that fade by half a level.
    image = np.zeros((64, 64, 3), np.uint8)
    image[:, ::2] = 255
    for scale, expected in ((1.0, 1.0), (2.0, 0.0)):
        rgb, _ = draw(wall(1.0, image=image, scale=scale))
        contrast = (rgb.max() - rgb.min()) / 255
        assert contrast == pytest.approx(expected, abs=0.02)


def test_vertex_colors_are_multiplied_and_perspective_correct() -> None:
    positions = [[-1, -1, -1], [1, -1, -3], [1, 1, -3], [-1, 1, -1]]
    colors = [[1, 0, 1], [0, 0, 1], [0, 0, 1], [1, 0, 1]]
    image = np.full((1, 1, 3), (200, 100, 50), np.uint8)
    rgb, depth = draw(renderer_of(positions, [0, 1, 2, 0, 2, 3], colors=colors, image=image))
    hit = depth > 0
    assert hit.sum() > 500
    assert np.abs(rgb[..., 0][hit] - 200 * (3 - depth[hit]) / 2).max() <= 1.6
    assert (rgb[..., 1][hit] == 0).all()
    assert (rgb[..., 2][hit] == 50).all()


def test_shared_edges_have_no_cracks_and_no_overlap() -> None:
    rng = np.random.default_rng(3)
    x, y = np.meshgrid(np.linspace(-3, 3, 30), np.linspace(-3, 3, 30))
    points = np.stack([x, y, np.full_like(x, -2.5)], axis=-1)
    points[1:-1, 1:-1, :2] += rng.uniform(-0.06, 0.06, (28, 28, 2))
    first = (np.arange(29)[:, None] * 30 + np.arange(29)).ravel()
    triangles = np.stack([first, first + 1, first + 31, first, first + 31, first + 30], axis=1)
    _, depth = draw(renderer_of(points.reshape(-1, 3), triangles), Camera(200, 200, 90.0, 0.0))
    assert np.allclose(depth, 2.5, rtol=1e-6)


def reference_depth(
    positions: NDArray[Any], triangles: NDArray[Any], camera: Camera, shift: tuple[float, float] = (0.0, 0.0)
) -> NDArray[Any]:
    """Depth by intersecting one ray per pixel with every front face (Moeller and Trumbore).

    positions are in the camera's frame; `shift` moves the rays by a part of a pixel.
    """
    focal = camera.width / 2 / math.tan(math.radians(camera.hfov) / 2)
    columns, rows = np.meshgrid(
        np.arange(camera.width) + 0.5 + shift[0], np.arange(camera.height) + 0.5 + shift[1]
    )
    rays = np.stack(
        [(columns - camera.width / 2) / focal, (camera.height / 2 - rows) / focal, -np.ones_like(rows)], axis=-1
    )
    best = np.full(rows.shape, np.inf)
    for a, b, c in positions[triangles].astype(np.float64):
        normal = np.cross(b - a, c - a)
        facing = rays @ normal
        with np.errstate(all="ignore"):
            depth = (a @ normal) / facing
            u = rays @ np.cross(c, a) / (rays @ (np.cross(a, b) + np.cross(b, c) + np.cross(c, a)))
            v = rays @ np.cross(a, b) / (rays @ (np.cross(a, b) + np.cross(b, c) + np.cross(c, a)))
            hit = (facing < 0) & (depth > 0.01) & (u >= 0) & (v >= 0) & (u + v <= 1) & (depth < best)
        best[hit] = depth[hit]
    return np.where(np.isfinite(best), best, 0)


@pytest.mark.parametrize(("count", "size"), [(400, 0.7), (400, 2.0), (2500, 0.4)])
def test_triangle_soup_agrees_with_ray_casting(count: int, size: float) -> None:
    rng = np.random.default_rng(count)
    centers = rng.uniform([-4, -4, -8], [4, 4, 0.5], (count, 1, 3))
    positions = (centers + rng.normal(0, size, (count, 3, 3))).reshape(-1, 3).astype(np.float32)
    triangles = np.arange(3 * count, dtype=np.int32).reshape(-1, 3)
    camera = Camera(93, 70, 79.0, 0.0)  # not whole tiles
    _, depth = draw(renderer_of(positions, triangles), camera)
    expected = reference_depth(positions, triangles, camera)
    assert (expected > 0).mean() > 0.4
    off = np.abs(depth - expected) > 1e-3 * np.maximum(expected, 1)
    assert off.mean() < 5e-3, "silhouette pixels may differ by the 1/256 pixel snap"


@pytest.mark.parametrize("seed", range(4))
def test_any_pose_agrees_with_ray_casting(seed: int) -> None:
    rng = np.random.default_rng(seed)
    positions = (
        (rng.uniform(-4, 4, (150, 1, 3)) + rng.normal(0, 1.5, (150, 3, 3))).reshape(-1, 3).astype(np.float32)
    )
    triangles = np.arange(450, dtype=np.int32).reshape(-1, 3)
    camera = Camera(24, 18, float(rng.uniform(40, 120)), float(rng.uniform(0, 2)), float(rng.uniform(-60, 60)))
    place, yaw = rng.uniform(-2, 2, 3).astype(np.float32), float(rng.uniform(-math.pi, math.pi))
    turn = (0.0, math.sin(yaw / 2), 0.0, math.cos(yaw / 2))
    _, depth = draw(renderer_of(positions, triangles), camera, place, turn)
    tilt = math.radians(camera.pitch_deg)
    level = np.array([[math.cos(yaw), 0, -math.sin(yaw)], [0, 1, 0], [math.sin(yaw), 0, math.cos(yaw)]])
    lowered = np.array([[1, 0, 0], [0, math.cos(tilt), math.sin(tilt)], [0, -math.sin(tilt), math.cos(tilt)]])
    seen = (positions - place - [0, camera.height_m, 0]) @ (lowered @ level).T
    around = [(x, y) for x in (-0.02, 0.0, 0.02) for y in (-0.02, 0.0, 0.02)]
    expected = np.stack([reference_depth(seen, triangles, camera, shift) for shift in around])
    inner = np.ptp(expected, axis=0) <= 0.02 * expected.max(axis=0)  # no silhouette within the 1/256 pixel snap
    assert inner.mean() > 0.8
    np.testing.assert_allclose(depth[inner], expected[4][inner], rtol=2e-3)


coordinates = st.one_of(
    st.floats(-999936, 999936, width=32),
    st.sampled_from([0.0, -0.01, -0.0100001, 1e-30, 999999.0, -999999.0]),
    st.floats(-2, 2, width=32),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(coordinates, coordinates, coordinates), min_size=3, max_size=9))
def test_any_triangle_can_be_drawn(points: list[tuple[float, float, float]]) -> None:
    count = len(points) // 3 * 3
    uvs = np.asarray(points)[:count, :2]
    colors = np.abs(np.sin(np.asarray(points)[:count]))
    renderer = renderer_of(points[:count], np.arange(count), uvs=uvs, colors=colors, image=checker(8))
    _, depth = draw(renderer)
    assert np.isfinite(depth).all()
    assert (depth >= 0).all()
    assert depth.max() <= 1000.0


@pytest.mark.parametrize(
    "camera", [Camera(0, 10, 90.0, 0.0), Camera(10, 10, 180.0, 0.0), Camera(10, 10, 0.0, 0.0)]
)
def test_impossible_camera(camera: Camera) -> None:
    with pytest.raises(UsageError, match="camera"):
        wall().render(camera, ORIGIN, IDENTITY)


@pytest.mark.slow
def test_warm_up_compiles_what_rendering_uses() -> None:
    from envs.embedded.render import raster, renderer, shade, shrink, texture

    labels = list(warm_up())
    assert len(labels) == len(set(labels)) == 4
    resizing: list[Any] = [shrink._along_rows, shrink._along_columns]
    kernels: list[Any] = [raster.rasterize, shade.shade, renderer._metric, texture.downsample, *resizing]
    before = [len(kernel.signatures) for kernel in kernels]
    draw(wall(image=checker(8), colors=np.ones((4, 3))))
    shrink.shrink(np.zeros((12, 16, 3), np.uint8), 6, 8)
    assert [len(kernel.signatures) for kernel in kernels] == before
