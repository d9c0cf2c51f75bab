"""Cost of frames: CPU time beside recorded figures of habitat-sim, memory and speed of several workers.

Run as a script: `python -m benchmarks.envs.render FOLDER`, where FOLDER holds `bench.json` and, for each
scene, its `.glb` and recorded walks, which give the poses. All times are process CPU time, a single thread here.
The dense house is `house_a` with every triangle cut into nine; there is no recorded figure for it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from envs.embedded.render import Renderer, load_scene
from envs.embedded.render.glb import GlbScene, read_glb
from envs.embedded.render.scene import prepare
from vlnbench.interfaces import Camera, Quaternion, Vec3

SCENES = ("house_a", "corridor_1LXtFkjw3qL")
CAMERAS = (Camera(224, 224, 90.0, 1.25), Camera(640, 480, 79.0, 1.25))
SMALL = (Camera(64, 64, 90.0, 1.25), Camera(96, 96, 90.0, 1.25))

Pose = tuple[Vec3, Quaternion]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--poses", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    recorded = json.loads((options.folder / "bench.json").read_text())["scenes"]
    print(f"{'scene':21s} {'size':>8s} {'RGB-D ms':>9s} {'depth ms':>9s} {'habitat-sim ms':>15s} {'ratio':>6s}")
    for scene in SCENES:
        renderer = Renderer(load_scene(glb(options.folder / scene)))
        chosen = poses(options.folder / scene, options.poses)
        for camera in SMALL + CAMERAS:
            both, depth = (cpu_ms(renderer, camera, chosen, options.repeats, rgb=rgb) for rgb in (True, False))
            size = f"{camera.width}x{camera.height}"
            theirs = recorded[scene].get(f"rgbd_{size}_cpu_ms_per_frame")
            compared = f"{theirs:15.2f} {both / theirs:6.2f}" if theirs else ""
            print(f"{scene:21s} {size:>8s} {both:9.2f} {depth:9.2f} {compared}")
    renderer = Renderer(prepare(dense(read_glb(glb(options.folder / SCENES[0]))), Path("dense")))
    chosen = poses(options.folder / SCENES[0], options.poses)
    for camera in CAMERAS:
        both, depth = (cpu_ms(renderer, camera, chosen, options.repeats, rgb=rgb) for rgb in (True, False))
        print(f"{'dense house':21s} {camera.width:>4d}x{camera.height} {both:9.2f} {depth:9.2f}")
    for scene in SCENES:
        workers(options.folder / scene, options.poses)


def glb(folder: Path) -> Path:
    return next(folder.glob("*.glb"))


def poses(folder: Path, count: int) -> list[Pose]:
    walks = np.load(folder / "walks_turn15_sliding.npz")
    positions = walks["position"].reshape(-1, 3).tolist()
    rotations = walks["rotation"].reshape(-1, 4).tolist()
    chosen = np.linspace(0, len(positions) - 1, count).astype(int)
    return [(tuple(positions[i]), tuple(rotations[i])) for i in chosen]


def cpu_ms(renderer: Renderer, camera: Camera, chosen: Sequence[Pose], repeats: int, *, rgb: bool) -> float:
    """Best of `repeats` rounds over the same poses, in milliseconds of CPU time per frame."""
    renderer.render(camera, *chosen[0], rgb=rgb)
    rounds = []
    for _ in range(repeats):
        start = time.process_time()
        for position, rotation in chosen:
            renderer.render(camera, position, rotation, rgb=rgb)
        rounds.append((time.process_time() - start) * 1e3 / len(chosen))
    return min(rounds)


def dense(source: GlbScene, parts: int = 3) -> GlbScene:
    """A Z-up scene in the world frame, every triangle cut into parts x parts equal ones."""
    weights = np.array(
        [
            [(parts - i - j, i, j) for i, j in corners]
            for row in range(parts)
            for k in range(parts - row)
            for corners in (
                ((row, k), (row + 1, k), (row, k + 1)),
                ((row + 1, k), (row + 1, k + 1), (row, k + 1)),
            )[: 1 if k == parts - row - 1 else 2]
        ],
        np.float32,
    ) / np.float32(parts)
    world = source.positions[:, (0, 2, 1)] * np.array([1, 1, -1], np.float32)
    positions, uvs = (
        np.einsum("scv,tvd->tscd", weights, values[source.triangles]).reshape(-1, values.shape[1])
        for values in (world, source.uvs)
    )
    return GlbScene(
        positions=positions,
        uvs=uvs,
        colors=None,
        triangles=np.arange(len(positions), dtype=np.int32).reshape(-1, 3),
        material_ids=source.material_ids.repeat(parts * parts),
        materials=source.materials,
        images=source.images,
    )


def workers(folder: Path, n_poses: int) -> None:
    """Memory of 1 and 4 processes that render one scene from its cache, and speed of 1 and 2."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as cache:
        start = time.process_time()
        load_scene(glb(folder), Path(cache))
        first = time.process_time() - start
        for count in (1, 2, 4):
            pipes, processes = [], []
            for _ in range(count):
                ours, theirs = context.Pipe()
                processes.append(context.Process(target=_work, args=(folder, Path(cache), n_poses, theirs)))
                processes[-1].start()
                pipes.append(ours)
            for pipe in pipes:
                pipe.recv()
            begin = time.perf_counter()
            for pipe in pipes:
                pipe.send("render")
            cpu = [pipe.recv() for pipe in pipes]
            wall = time.perf_counter() - begin
            found = []
            for pipe in pipes:  # one after the other, all alive
                pipe.send("measure")
                found.append(pipe.recv())
            for pipe, process in zip(pipes, processes, strict=True):
                pipe.send("end")
                process.join()
            private, pss, load = np.mean(found, axis=0)
            print(
                f"{folder.name:21s} {count} workers: the scene adds {pss:.1f} MB (PSS), {private:.1f} MB private "
                f"each; {count * n_poses / wall:.0f} frames/s, {np.mean(cpu) * 1e3 / n_poses:.2f} CPU ms per "
                f"frame; load {load * 1e3:.0f} ms, first time {first * 1e3:.0f} ms"
            )


def _work(folder: Path, cache: Path, n_poses: int, pipe: Connection) -> None:
    camera = CAMERAS[1]
    chosen = poses(folder, n_poses)
    small = prepare(dense(read_glb(glb(folder)), 1), Path("warm-up"))
    Renderer(small).render(camera, *chosen[0])  # machine code is not part of the scene
    del small
    before = memory()
    start = time.process_time()
    renderer = Renderer(load_scene(glb(folder), cache))
    load = time.process_time() - start
    pipe.send("ready")
    while pipe.recv() != "end":
        start = time.process_time()
        for position, rotation in chosen:
            renderer.render(camera, position, rotation)
        pipe.send(time.process_time() - start)
        if pipe.recv() == "measure":
            after = memory()
            pipe.send((after[0] - before[0], after[1] - before[1], load))


def memory() -> tuple[float, float]:
    """Private (dirty) and proportional set size of this process in MB."""
    fields = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    private, pss = (float(fields[name].split()[0]) / 1e3 for name in ("Private_Dirty", "Pss"))
    return private, pss


if __name__ == "__main__":
    main()
