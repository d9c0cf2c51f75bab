"""Speed of navmesh queries against the recorded figures of habitat-sim.

    python -m benchmarks.envs.navmesh GOLDENS

GOLDENS holds `bench.json` and one folder per scene. Calls per second of processor time, Python call included, best
of five runs; the ratio is ours in this run divided by the recorded figure.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.navmesh import warm_up
from envs.embedded.navmesh.motion import advance
from envs.embedded.navmesh.pathfinder import PathFinder

BODY = "r010_h150"
RUNS = 5
REPEATS = 5


def rate(call: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> float:
    """Best number of calls per second of processor time."""
    best = float("inf")
    for _ in range(RUNS):
        begin = time.process_time()
        for _ in range(REPEATS):
            for values in arguments:
                call(*values)
        best = min(best, time.process_time() - begin)
    return REPEATS * len(arguments) / best


def walk(pathfinder: PathFinder, actions: NDArray[Any], position: NDArray[Any], rotation: NDArray[Any]) -> None:
    """One recorded walk of 150 actions."""
    for action in actions.tolist():
        position, rotation, _ = advance(pathfinder, position, rotation, action, 0.25, 15.0, True)


def measure(folder: Path) -> Iterator[tuple[str, float]]:
    """(name of the recorded figure, calls per second) of one scene."""
    pathfinder = PathFinder.load(folder / f"navmesh_{BODY}.navmesh")
    with np.load(folder / f"queries_{BODY}.npz") as queries:
        pairs = list(zip(queries["pair_start"][:300], queries["pair_end"][:300], strict=True))
        steps = list(zip(queries["step_start"][:200], queries["step_end"][:200], strict=True))
        snaps = [(point,) for point in queries["snap_in"]]
    with np.load(folder / "walks_turn15_sliding.npz") as walks:
        starts = zip(walks["actions"], walks["start_position"], walks["start_rotation"], strict=True)
        walked = [(pathfinder, *values) for values in starts]
    yield "find_path_per_cpu_s", rate(pathfinder.find_path, pairs)
    yield "find_path_per_cpu_s", rate(pathfinder.geodesic_distance, pairs)
    yield "try_step_per_cpu_s", rate(pathfinder.try_step, steps)
    yield "try_step_no_sliding_per_cpu_s", rate(pathfinder.try_step_no_sliding, steps)
    yield "snap_point_per_cpu_s", rate(pathfinder.snap_point, snaps)
    yield "step_without_sensors_per_cpu_s", 150 * rate(walk, walked)


def main(goldens: Path) -> None:
    """Print the table."""
    begin = time.perf_counter()
    for _ in warm_up():
        pass
    print(f"kernels ready after {time.perf_counter() - begin:.1f} s")
    recorded = json.loads((goldens / "bench.json").read_text())["scenes"]
    labels = ("find_path", "geodesic_distance", "try_step", "try_step_no_sliding", "snap_point", "advance")
    print(f"{'scene':24}{'query':22}{'ours /s':>10}{'recorded /s':>13}{'ratio':>7}")
    for scene in sorted(recorded):
        if not (goldens / scene).is_dir():
            continue
        for label, (name, ours) in zip(labels, measure(goldens / scene), strict=True):
            figure = recorded[scene][name]
            print(f"{scene:24}{label:22}{ours:10.0f}{figure:13.0f}{ours / figure:7.2f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.envs.navmesh GOLDENS")
    main(Path(sys.argv[1]))
