"""A scene as large as a Matterport3D building: time and memory to load it, to build its navmesh and to draw it.

Run as a script: `python -m benchmarks.envs.large_scene --triangles 1000000`. The building is made here: two
storeys of rooms with doors, their surfaces cut into uneven triangles as in a scan, a photograph-like JPEG for each
room. All times are process CPU time on a single thread.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.render import Renderer, load_scene
from tests.envs.embedded.render.glb_writer import GlbWriter
from vlnbench.interfaces import Camera

ROOM_M, HEIGHT_M, DOOR_M, DOOR_HEIGHT_M = 5.0, 2.7, 1.2, 2.1
ROOMS, STOREYS = 5, 2
CAMERAS = (Camera(224, 224, 90.0, 1.25), Camera(640, 480, 79.0, 1.25))
T = TypeVar("T")
Surface = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
"""A rectangle that faces u x v: its corner and its two sides, meters, z up."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--triangles", type=int, default=1_000_000)
    parser.add_argument("--texture", type=int, default=1024, help="pixels a side of each of the 50 textures")
    parser.add_argument("--poses", type=int, default=60)
    parser.add_argument("--beside", type=Path, nargs="*", default=[], help="other scenes, drawn in turn with it")
    parser.add_argument("--file", type=Path, help="keep the scene here; used as it is where it exists")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / "building.glb"
        if not path.exists():
            building(options.triangles, options.texture).save(path)
        print(f"file {path.stat().st_size / 2**20:.0f} MiB")
        cache = Path(folder) / "cache"
        measure(path, cache)
        compare_frames([path, *options.beside], cache, options.poses)


def measure(path: Path, cache: Path) -> None:
    before = peak_mib()
    scene, seconds = timed(lambda: load_scene(path, cache))
    count = len(scene.triangles)
    grown = peak_mib() - before
    print(
        f"load {count} triangles: {seconds:.2f} s, peak {grown:.0f} MiB ({grown * 2**20 / count:.0f} B a triangle)"
    )
    _, seconds = timed(lambda: load_scene(path, cache))
    print(f"load from cache: {seconds:.2f} s")
    settings = NavMeshSettings()
    _, seconds = timed(lambda: build_polymesh(scene.vertices, scene.triangles, settings))
    print(f"navmesh: {seconds:.2f} s, peak {peak_mib() - before:.0f} MiB")


def compare_frames(paths: list[Path], cache: Path, n_poses: int) -> None:
    """Frames of several scenes in turn, so that a busy machine slows all of them alike."""
    views = [(Renderer(load_scene(path, cache)), standpoints(path, cache, n_poses)) for path in paths]
    for camera in CAMERAS:
        rounds = [[frame_ms(view, camera, *poses[k]) for view, poses in views] for k in range(n_poses)]
        for path, frames in zip(paths, zip(*rounds, strict=True), strict=True):
            numbers = f"mean {np.mean(frames):.2f} ms, median {np.median(frames):.2f}, slowest {max(frames):.2f}"
            print(f"RGB-D frame {camera.width}x{camera.height} of {path.name}: {numbers}")


def standpoints(path: Path, cache: Path, count: int) -> list[tuple[NDArray[np.float32], float]]:
    """Points on the scene's navmesh, and directions."""
    scene, settings = load_scene(path, cache), NavMeshSettings()
    pathfinder = PathFinder.from_polymesh(*build_polymesh(scene.vertices, scene.triangles, settings), settings)
    random = np.random.default_rng(0)
    return [(pathfinder.get_random_navigable_point(), random.uniform(0, 2 * np.pi)) for _ in range(count)]


def frame_ms(renderer: Renderer, camera: Camera, point: NDArray[np.float32], yaw: float) -> float:
    """Best of three."""
    x, y, z = point.tolist()
    rotation = (0.0, float(np.sin(yaw / 2)), 0.0, float(np.cos(yaw / 2)))
    return 1e3 * min(timed(lambda: renderer.render(camera, (x, y, z), rotation))[1] for _ in range(3))


def timed(call: Callable[[], T]) -> tuple[T, float]:
    begin = time.process_time()
    result = call()
    return result, time.process_time() - begin


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def building(n_triangles: int, texture: int) -> GlbWriter:
    """About `n_triangles` in as many meshes as there are rooms, each with a texture of its own."""
    random, writer = np.random.default_rng(1), GlbWriter()
    rooms = [list(room(i, j, k)) for k in range(STOREYS) for i in range(ROOMS) for j in range(ROOMS)]
    area = sum(np.linalg.norm(np.cross(u, v)) for surfaces in rooms for _, u, v in surfaces)
    edge = np.sqrt(2 * area / n_triangles)
    for surfaces in rooms:
        parts = [grid(*surface, edge, random) for surface in surfaces]
        starts = np.cumsum([0] + [len(positions) for positions, _, _ in parts])
        writer.mesh(
            np.concatenate([positions for positions, _, _ in parts]),
            np.concatenate([indices + start for (_, _, indices), start in zip(parts, starts, strict=False)]),
            uvs=np.concatenate([uvs for _, uvs, _ in parts]),
            material=writer.material(photograph(texture, random), kind="JPEG"),
        )
    return writer


def room(i: int, j: int, storey: int) -> Iterator[Surface]:
    """Floor, ceiling and walls of a room, seen from inside; a door in every wall between rooms."""
    low = np.array([i * ROOM_M, j * ROOM_M, storey * (HEIGHT_M + 0.3)])
    x, y, z = np.eye(3)
    yield low, x * ROOM_M, y * ROOM_M
    yield low + z * HEIGHT_M, y * ROOM_M, x * ROOM_M
    for along, inward, index in ((x, y, j), (y, x, i)):
        for far in (0, 1):
            corner = low + far * ROOM_M * inward
            has_door = 0 <= index + 2 * far - 1 < ROOMS
            for begin, length, bottom in wall(has_door):
                u, v = along * length, z * (HEIGHT_M - bottom)
                faces_in = (np.cross(u, v) @ inward > 0) != bool(far)
                yield corner + along * begin + z * bottom, *((u, v) if faces_in else (v, u))


def wall(has_door: bool) -> list[tuple[float, float, float]]:
    """Pieces of a wall as (begin, length, lower edge)."""
    if not has_door:
        return [(0.0, ROOM_M, 0.0)]
    side = (ROOM_M - DOOR_M) / 2
    return [(0.0, side, 0.0), (side, DOOR_M, DOOR_HEIGHT_M), (side + DOOR_M, side, 0.0)]


def grid(
    corner: NDArray[np.float64],
    u: NDArray[np.float64],
    v: NDArray[np.float64],
    edge: float,
    random: np.random.Generator,
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint32]]:
    """Positions, texture coordinates and indices of a rectangle in uneven triangles of about `edge` meters."""
    columns, rows = (max(1, round(float(np.linalg.norm(side)) / edge)) for side in (u, v))
    s, t = np.meshgrid(np.arange(columns + 1.0), np.arange(rows + 1.0))
    for axis, count in ((s, columns), (t, rows)):
        inner = (axis > 0) & (axis < count)
        axis += inner * random.uniform(-0.3, 0.3, axis.shape)
        axis /= count
    normal = np.cross(u, v) / np.linalg.norm(np.cross(u, v))
    bumps = random.normal(0, 0.002, s.shape)[..., None] * normal
    positions = corner + s[..., None] * u + t[..., None] * v + bumps
    first = (np.arange(rows)[:, None] * (columns + 1) + np.arange(columns)).ravel()
    right, up, across = first + 1, first + columns + 1, first + columns + 2
    indices = np.stack([first, right, across, first, across, up], axis=1)
    uvs = np.stack([s, t], axis=-1).reshape(-1, 2)
    return positions.reshape(-1, 3).astype(np.float32), uvs.astype(np.float32), indices.ravel().astype(np.uint32)


def photograph(side: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """(side, side, 3) uint8 with detail at every scale, so that it compresses like a photograph."""
    total = np.zeros((side, side, 3))
    cells = 4
    while cells <= side:
        noise = random.normal(0, 60 / np.sqrt(cells), (cells, cells, 3))
        total += noise.repeat(side // cells, axis=0).repeat(side // cells, axis=1)
        cells *= 2
    return np.clip(total + 128, 0, 255).astype(np.uint8)


if __name__ == "__main__":
    main()
