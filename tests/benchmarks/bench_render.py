"""CPU time per RGB and depth frame, beside recorded figures of habitat-sim.

Run as a script: `python tests/benchmarks/bench_render.py FOLDER`, where FOLDER holds `bench.json` and, for each
scene, its `.glb` and recorded walks, which give the poses. Both sides are process CPU time, single thread here.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from envs.embedded.render import Renderer, load_scene
from vlnbench.interfaces import Camera

SCENES = ("house_a", "corridor_1LXtFkjw3qL")
CAMERAS = (Camera(224, 224, 90.0, 1.25), Camera(640, 480, 79.0, 1.25))


def cpu_ms(folder: Path, camera: Camera, n_poses: int, repeats: int) -> float:
    """Best of `repeats` rounds over the same poses, in milliseconds of CPU time per frame."""
    renderer = Renderer(load_scene(next(folder.glob("*.glb"))))
    walks = np.load(folder / "walks_turn15_sliding.npz")
    positions = walks["position"].reshape(-1, 3).astype(np.float64)
    rotations = walks["rotation"].reshape(-1, 4).astype(np.float64)
    chosen = np.linspace(0, len(positions) - 1, n_poses).astype(int)
    poses = [(tuple(positions[i]), tuple(rotations[i])) for i in chosen]
    renderer.render(camera, *poses[0])
    rounds = []
    for _ in range(repeats):
        start = time.process_time()
        for position, rotation in poses:
            renderer.render(camera, position, rotation)
        rounds.append((time.process_time() - start) * 1e3 / len(poses))
    return min(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--poses", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    recorded = json.loads((options.folder / "bench.json").read_text())["scenes"]
    print(f"{'scene':24s} {'size':>8s} {'ours ms':>8s} {'habitat-sim ms':>15s} {'ratio':>6s}")
    for scene in SCENES:
        for camera in CAMERAS:
            ours = cpu_ms(options.folder / scene, camera, options.poses, options.repeats)
            size = f"{camera.width}x{camera.height}"
            theirs = recorded[scene][f"rgbd_{size}_cpu_ms_per_frame"]
            print(f"{scene:24s} {size:>8s} {ours:8.2f} {theirs:15.2f} {ours / theirs:6.2f}")


if __name__ == "__main__":
    main()
