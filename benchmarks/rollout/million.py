"""What the commands that read runs take of runs of 10,000 and 1,000,000 episodes.

Run as a script: `python -m benchmarks.rollout.million --out FOLDER`. Rows and trajectories are those of a
committed run over and over, drawn anew for each of two runs. Prints seconds of a core, seconds on the clock and
peak memory of each command, given for the first time and again, when the tables of its runs are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from vlnbench.evaluation.records import MANIFEST, ROWS, TRAJECTORIES
from vlnbench.util.durable.files import encode_line, read_jsonl, read_object

RUN = Path("results/runs/houses-r2r-val-unseen-streamvln-tiny")
SCENES = 90
"""As many as Matterport3D has."""

RUNS = ("a", "b")


def make(folder: Path, count: int, seed: int) -> None:
    """A run of so many episodes, each with a row and a trajectory."""
    folder.mkdir(parents=True)
    rng = random.Random(seed)
    rows = [row for _, row in read_jsonl(RUN / ROWS)]
    walks = {walk["key"][2]: walk for _, walk in read_jsonl(RUN / TRAJECTORIES)}
    made = [(row, encode_line(walks[row["episode_id"]]).split(b"]", 1)[1]) for row in rows]
    with (folder / ROWS).open("wb") as to_rows, (folder / TRAJECTORIES).open("wb") as to_walks:
        for i in range(count):
            row, walk = made[rng.randrange(len(made))]
            row["episode_id"], row["scene_id"] = str(i), f"scene{i * SCENES // count}"
            row["trajectory_id"] = str(i // 3)
            to_rows.write(encode_line(row))
            key = [row["benchmark"], row["split"], row["episode_id"], 0]
            to_walks.write(b'{"key":' + json.dumps(key, separators=(",", ":")).encode() + walk)
    manifest = read_object(RUN / MANIFEST)
    manifest["identity"] |= {"episodes": count, "split_size": count, "seed": seed}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def measured(arguments: list[str], cache: Path) -> str:
    """Seconds of a core, seconds on the clock and MB at most of a command that ends well."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "vlnbench", *arguments],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "VLNBENCH_CACHE": str(cache)},
    )
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"vlnbench {' '.join(arguments)}: exit code {os.waitstatus_to_exitcode(status)}")
    core, clock = used.ru_utime + used.ru_stime, time.monotonic() - began
    return f"{core:.1f} | {clock:.1f} | {used.ru_maxrss / 1000:.0f}"


def commands(folder: Path) -> dict[str, list[str]]:
    """What is measured, by its name."""
    a, b = (str(folder / name) for name in RUNS)
    page = str(folder / "page.html")
    nowhere = ["--data-root", str(folder / "none")]
    return {
        "status": ["status", a],
        "rank": ["rank", a, b],
        "view": ["view", a, b, "--out", page, *nowhere],
        "report": ["report", a, "--out", page, *nowhere],
        "compare": ["compare", a, b],
    }


def main() -> None:
    """Make what is not there yet, and measure every command on both sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--only", nargs="+", default=None)
    options = parser.parse_args()
    print("| command | episodes | core s | clock s | MB | again: core s | clock s | MB |\n" + 8 * "|---" + "|")
    cache = options.out / "cache"
    for size in options.sizes:
        folder = options.out / str(size)
        for seed, name in enumerate(RUNS):
            if not (folder / name).is_dir():
                make(folder / name, size, seed)
        for name, arguments in commands(folder).items():
            if options.only is None or name in options.only:
                shutil.rmtree(cache, ignore_errors=True)
                first, again = (measured(arguments, cache) for _ in range(2))
                print(f"| {name} | {size:,} | {first} | {again} |", flush=True)


if __name__ == "__main__":
    main()
