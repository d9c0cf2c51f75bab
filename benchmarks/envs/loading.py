"""CPU seconds for loading honest files in two checkouts of vlnbench, side by side in turns: what checks cost.

    python -m benchmarks.envs.loading --old DIR --data-root DATA --scene FILE.glb --navmesh FILE.navmesh

DIR is a checkout of an older commit (`git worktree add DIR COMMIT`). A process of each checkout loads the same
file in turns; the ratio of one pair is new over old, and what is printed is the median with its quartiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[2]
MODULES = ("vlnbench.data", "vlnbench")
"""Where benchmarks and episodes were, the newest place first."""

WORKER = """
import importlib, json, sys, time
from pathlib import Path

def module(name):
    for package in json.loads(sys.argv[1]):
        try:
            return importlib.import_module(package + "." + name)
        except ModuleNotFoundError:
            pass
    raise SystemExit("no module " + name)

def episodes(benchmark, split, root):
    found = module("benchmarks").get_benchmark(benchmark)
    return lambda: module("episodes").load_split(found, split, Path(root), allow_partial=True)

def scene(path):
    from envs.embedded.render.scene import load_scene
    return lambda: load_scene(Path(path))

def navmesh(path):
    from envs.embedded.navmesh.pathfinder import PathFinder
    return lambda: PathFinder.load(Path(path))

for line in sys.stdin:
    kind, times, *arguments = json.loads(line)
    load = {"episodes": episodes, "scene": scene, "navmesh": navmesh}[kind](*arguments)
    load()
    start = time.process_time()
    for _ in range(times):
        load()
    print((time.process_time() - start) / times, flush=True)
"""


class Checkout:
    """A process that loads files with the code of a checkout."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", WORKER, json.dumps(MODULES)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=folder, env={"PYTHONPATH": str(folder)}, **pipes)

    def __enter__(self) -> Checkout:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def seconds(self, what: list[Any]) -> float:
        """CPU seconds of one loading."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--benchmark", default="r2r-ce")
    parser.add_argument("--split", default="val_seen")
    parser.add_argument("--scene", type=Path)
    parser.add_argument("--navmesh", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    todo: dict[str, list[Any]] = {}
    if options.data_root:
        todo["episodes"] = ["episodes", 1, options.benchmark, options.split, str(options.data_root.resolve())]
    if options.scene:
        todo["scene"] = ["scene", 1, str(options.scene.resolve())]
    if options.navmesh:
        todo["navmesh"] = ["navmesh", 50, str(options.navmesh.resolve())]
    with ExitStack() as stack:
        old, new = (stack.enter_context(Checkout(folder.resolve())) for folder in (options.old, HERE))
        for name, what in todo.items():
            pairs = []
            for number in range(options.rounds):
                order = (old, new) if number % 2 else (new, old)
                taken = {each: each.seconds(what) for each in order}
                pairs.append((taken[old], taken[new]))
            low, middle, high = statistics.quantiles([b / a for a, b in pairs], n=4)
            before, after = (statistics.median(column) for column in zip(*pairs, strict=True))
            print(
                f"{name}: new over old {middle:.3f} (quartiles {low:.3f} to {high:.3f}, {len(pairs)} pairs); "
                f"{1000 * before:.1f} and {1000 * after:.1f} ms of CPU"
            )


if __name__ == "__main__":
    main()
