from __future__ import annotations

import json
import os
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from envs.embedded.render import cache
from envs.embedded.render.scene import CHUNK, Scene, load_scene
from tests.envs.embedded.render.glb_writer import GlbWriter, quad
from vlnbench.errors import UsageError


def grid(n: int) -> GlbWriter:
    """A height field of 2 n^2 triangles in the file's x-y plane and one degenerate triangle."""
    x, y = np.meshgrid(np.arange(n + 1.0), np.arange(n + 1.0))
    positions = np.stack([x, y, np.sin(x) * np.cos(y)], axis=-1).reshape(-1, 3)
    first = (np.arange(n)[:, None] * (n + 1) + np.arange(n)).ravel()
    triangles = np.stack([first, first + 1, first + n + 2, first, first + n + 2, first + n + 1], axis=1)
    writer = GlbWriter()
    writer.mesh(positions, np.append(triangles.ravel(), [0, 0, 1]).astype(np.uint32))
    return writer


def test_bare_file_is_z_up(tmp_path: Path) -> None:
    writer = GlbWriter()
    writer.mesh([[1, 2, 3], [4, 2, 3], [1, 5, 3]])
    scene = load_scene(writer.save(tmp_path / "a.glb"))
    np.testing.assert_allclose(scene.vertices, [[1, 3, -2], [4, 3, -2], [1, 3, -5]], atol=1e-6)
    np.testing.assert_allclose(scene.bounds, [[1, 3, -5], [4, 3, -2]], atol=1e-6)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [1, 3, -2]),
        ({"up": [0, 1, 0], "front": [0, 0, -1]}, [1, 2, 3]),
        ({"up": [0, 0, 2], "front": [0, 3, 0]}, [1, 3, -2]),
        ({"up": [0, 0, 1], "front": [1, 0, 0]}, [-2, 3, -1]),
        ({"scale": [2, 1, -1], "origin": [5, 5, 5], "margin": 0.1}, [2, 3, 2]),
    ],
)
def test_stage_config(tmp_path: Path, config: dict[str, object], expected: list[float]) -> None:
    writer = GlbWriter()
    writer.mesh([[1, 2, 3], [4, 2, 3], [1, 5, 3]])
    (tmp_path / "a.stage_config.json").write_text(json.dumps(config))
    scene = load_scene(writer.save(tmp_path / "a.glb"))
    assert np.allclose(scene.vertices[0], expected)


def test_mirroring_scale_keeps_the_front_side(tmp_path: Path) -> None:
    writer = GlbWriter()
    writer.mesh(*quad()[:2])
    (tmp_path / "a.stage_config.json").write_text('{"scale": [-1, 1, 1]}')
    scene = load_scene(writer.save(tmp_path / "a.glb"))
    assert (scene.render.planes[:, 1] > 0.99).all(), "drawn from the file's +z side, world +y"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "JSON"),
        ("[]", "JSON object"),
        ('{"up": "z"}', "up"),
        ('{"up": [0, 0]}', "up"),
        ('{"up": [0, 0, NaN]}', "up"),
        ('{"up": [0, 0, 0]}', "perpendicular"),
        ('{"up": [0, 1, 0]}', "perpendicular"),
        ('{"scale": [1, 0, 1]}', "scale"),
        ('{"scale": [1, true, 1]}', "scale"),
    ],
)
def test_malformed_stage_config(tmp_path: Path, text: str, field: str) -> None:
    path = grid(1).save(tmp_path / "a.glb")
    (tmp_path / "a.stage_config.json").write_text(text)
    with pytest.raises(UsageError, match=rf"stage_config\.json: .*{field}"):
        load_scene(path)


def test_chunks_hold_every_triangle_once_and_are_compact(tmp_path: Path) -> None:
    scene = load_scene(grid(64).save(tmp_path / "a.glb"))
    assert len(scene.triangles) == 2 * 64**2 + 1, "the collision mesh keeps degenerate triangles"
    render = scene.render
    assert len(render.corners) == 2 * 64**2
    ours = {row.tobytes() for row in render.corners}
    assert ours == {row.tobytes() for row in scene.vertices[scene.triangles[:-1]].reshape(-1, 9)}
    for chunk, (x0, y0, z0, x1, y1, z1) in enumerate(render.chunk_bounds):
        points = render.corners[chunk * CHUNK : (chunk + 1) * CHUNK].reshape(-1, 3)
        assert np.array_equal(points.min(axis=0), [x0, y0, z0])
        assert np.array_equal(points.max(axis=0), [x1, y1, z1])
    area = (render.chunk_bounds[:, 3] - render.chunk_bounds[:, 0]) * (
        render.chunk_bounds[:, 5] - render.chunk_bounds[:, 2]
    )
    assert np.median(area) <= 64, "64 triangles of half a square meter each"
    inside = np.einsum("tk,tk->t", render.planes[:, :3], render.corners[:, 3:6]) + render.planes[:, 3]
    assert np.abs(inside).max() < 1e-4


def same(a: Scene, b: Scene) -> bool:
    pairs = [*zip(a.render, b.render, strict=True), (a.vertices, b.vertices), (a.triangles, b.triangles)]
    # The kernels are compiled for one kind of array, so cached and fresh ones have to be alike in memory too.
    alike = all(
        (x.dtype, x.flags.c_contiguous, x.flags.aligned, x.flags.writeable)
        == (y.dtype, y.flags.c_contiguous, y.flags.aligned, y.flags.writeable)
        for x, y in pairs
    )
    return alike and all(np.array_equal(x, y) for x, y in pairs)


def test_cache_round_trip(tmp_path: Path) -> None:
    path = grid(5).save(tmp_path / "a.glb")
    fresh = load_scene(path)
    assert not fresh.vertices.flags.writeable
    for _ in range(2):
        assert same(load_scene(path, tmp_path / "cache"), fresh)
    (cached,) = (tmp_path / "cache").iterdir()
    before = cached.stat().st_ino
    load_scene(path, tmp_path / "cache")
    assert cached.stat().st_ino == before


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text"])
def test_damaged_cache_is_rebuilt(tmp_path: Path, damage: str) -> None:
    path = grid(5).save(tmp_path / "a.glb")
    fresh = load_scene(path, tmp_path / "cache")
    (cached,) = (tmp_path / "cache").iterdir()
    good = bytearray(cached.read_bytes())
    bad = bytearray(good)
    bad[-100] ^= 1
    contents = {"truncated": good[:-64], "flipped": bad, "empty": b"", "text": b"no cache at all" * 9}
    cached.unlink()
    cached.write_bytes(contents[damage])
    assert same(load_scene(path, tmp_path / "cache"), fresh)
    assert cached.read_bytes() == good


def test_changed_scene_or_stage_config_is_rebuilt(tmp_path: Path) -> None:
    path = grid(5).save(tmp_path / "a.glb")
    load_scene(path, tmp_path / "cache")
    (tmp_path / "a.stage_config.json").write_text('{"scale": [2, 2, 2]}')
    doubled = load_scene(path, tmp_path / "cache")
    assert doubled.bounds[1, 0] == 10
    grid(6).save(path)
    assert load_scene(path, tmp_path / "cache").bounds[1, 0] == 12


def test_unwritable_cache(tmp_path: Path) -> None:
    path = grid(1).save(tmp_path / "a.glb")
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(UsageError, match="cannot write the cache"):
        load_scene(path, tmp_path / "cache")


def _load(path: Path, cache: Path) -> float:
    return float(load_scene(path, cache).vertices.sum())


@pytest.mark.slow
def test_processes_build_the_same_cache(tmp_path: Path) -> None:
    path = grid(20).save(tmp_path / "a.glb")
    with get_context("spawn").Pool(2) as pool:
        sums = pool.starmap(_load, [(path, tmp_path / "cache")] * 4)
    assert set(sums) == {_load(path, tmp_path / "cache")}
    assert len(list((tmp_path / "cache").iterdir())) == 1, "no temporary file is left"


def test_the_cache_forgets_what_was_not_opened_for_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    scenes = []
    for name in "abc":
        writer = GlbWriter()
        writer.mesh([[1, 2, 3], [4, 2, 3], [1, 5, 3]])
        scenes.append(writer.save(tmp_path / f"{name}.glb"))
    load_scene(scenes[0], folder)
    load_scene(scenes[1], folder)
    size = next(folder.iterdir()).stat().st_size
    old = {path.name[0]: path for path in folder.iterdir()}
    for age, name in ((200, "a"), (100, "b")):
        os.utime(old[name], (time.time() - age, time.time() - age))
    load_scene(scenes[0], folder)  # opened again: now b is the oldest
    monkeypatch.setattr(cache, "BUDGET_BYTES", 2 * size)
    load_scene(scenes[2], folder)
    assert sorted(path.name[0] for path in folder.iterdir()) == ["a", "c"]


def test_more_texels_than_can_be_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = GlbWriter()
    positions, indices, uvs = quad()
    pixels = np.zeros((16, 16, 3), np.uint8)
    writer.mesh(positions, indices, uvs=uvs, material=writer.material(pixels))
    monkeypatch.setattr("envs.embedded.render.texture.MAX_POOL", 400)
    with pytest.raises(UsageError, match=r"a\.glb: images: \d+ texels with mip-maps, more than 400"):
        load_scene(writer.save(tmp_path / "a.glb"))
