"""Time of navmesh builds against the recorded figures of habitat-sim.

    python -m benchmarks.envs.navmesh_build GOLDENS

GOLDENS holds `bench.json` and one folder per scene. Milliseconds of processor time from triangle arrays to a
navmesh that answers queries, best of ten runs; the ratio is ours in this run divided by the recorded figure (below
1 is faster). The last line builds a floor of a million triangles.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.navmesh import warm_up as warm_up_queries
from envs.embedded.navmesh.build import build_polymesh, warm_up
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.navmesh.tiles.tile_file import read_navmesh
from envs.embedded.render import load_scene

BODIES = ("r010_h150", "r018_h088", "r020_h150")
RUNS = 10
SIDE = 708


def build_ms(
    vertices: NDArray[Any], triangles: NDArray[Any], settings: NavMeshSettings, runs: int = RUNS
) -> float:
    """Best processor time of a build in milliseconds."""
    best = float("inf")
    for _ in range(runs):
        begin = time.process_time()
        PathFinder.from_polymesh(*build_polymesh(vertices, triangles, settings), settings)
        best = min(best, time.process_time() - begin)
    return 1000 * best


def rough_floor() -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """A floor of 35 m x 35 m in 2 x 708 x 708 triangles, uneven by 2 cm."""
    heights = np.random.default_rng(0).uniform(0, 0.02, (SIDE + 1, SIDE + 1))
    rows, columns = np.mgrid[: SIDE + 1, : SIDE + 1]
    vertices = np.stack([columns * 0.05, heights, rows * 0.05], axis=-1).reshape(-1, 3).astype(np.float32)
    corner = (rows[:-1, :-1] * (SIDE + 1) + columns[:-1, :-1]).ravel()
    below = corner + SIDE + 1
    triples = (corner, below, below + 1), (corner, below + 1, corner + 1)
    triangles = np.concatenate([np.stack(triple, axis=1) for triple in triples])
    return vertices, triangles.astype(np.int32)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    goldens = Path(sys.argv[1])
    begin = time.process_time()
    for _ in warm_up():
        pass
    print(f"compile or load machine code of the builder: {time.process_time() - begin:.1f} s")
    for _ in warm_up_queries():
        pass
    for scene, recorded in json.loads((goldens / "bench.json").read_text("utf-8"))["scenes"].items():
        folder = goldens / scene
        if not folder.is_dir():
            continue
        mesh = load_scene(next(folder.glob("*.glb")))
        for body in BODIES:
            _, settings = read_navmesh(folder / f"navmesh_{body}.navmesh")
            ours = build_ms(mesh.vertices, mesh.triangles, settings, RUNS)
            theirs = recorded[f"navmesh_{body}_cpu_ms"]
            print(f"{scene:<24}{body:<12}{ours:7.1f} ms  habitat-sim {theirs:7.1f} ms  ratio {ours / theirs:.2f}")
    vertices, triangles = rough_floor()
    ours = build_ms(vertices, triangles, NavMeshSettings(), runs=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(triangles)} triangles: {ours:.0f} ms, peak memory of the process {peak:.0f} MiB")


if __name__ == "__main__":
    main()
