"""Episodes per hour of two checkouts of vlnbench, side by side: the same command in turns, equal rows.

    python -m benchmarks.rollout.checkouts --old DIR --data-root DATA --episodes 300
    python -m benchmarks.rollout.checkouts --old DIR --data-root DATA --episodes 300 --busy 1

DIR is a checkout of an older commit (`git worktree add DIR COMMIT`). Each runs `vlnbench eval` once before it
counts, on few episodes, so that everything is compiled. What is compared is the time from the first episode to
the last, which a run ends by telling, and the time from the command to the end. `--busy N` keeps N processes
computing beside them. What follows `--` goes to `vlnbench eval`. Rows and trajectories must be equal but for
their times.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[2]
WARM_UP_EPISODES = 4
TIMES = "seconds"
"""Field of a row with the times it took."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("more", nargs="*", help="options of vlnbench eval, after --")
    options = parser.parse_args()
    checkouts = {"old": options.old.resolve(), "new": HERE}
    command = ["--data-root", str(options.data_root.resolve()), *options.more]
    walked: dict[str, list[float]] = {name: [] for name in checkouts}
    whole: dict[str, list[float]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        for name, checkout in checkouts.items():
            run(checkout, [*command, "--episodes", str(WARM_UP_EPISODES)], Path(folder, f"{name}-warm"))
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
        try:
            for number in range(options.rounds):
                out = {name: Path(folder, f"{name}-{number}") for name in checkouts}
                for name, checkout in checkouts.items():
                    episodes, total = run(checkout, [*command, "--episodes", str(options.episodes)], out[name])
                    walked[name].append(episodes)
                    whole[name].append(total)
                    rate = 3600 * options.episodes / episodes
                    print(f"{name}: {episodes:.1f} s, {rate:.0f} episodes/h; {total:.1f} s in all", flush=True)
                if content(out["old"]) != content(out["new"]):
                    raise SystemExit("rows or trajectories differ")
        finally:
            for process in busy:
                process.kill()
                process.wait()
    ratios = [old / new for old, new in zip(walked["old"], walked["new"], strict=True)]
    totals = [old / new for old, new in zip(whole["old"], whole["new"], strict=True)]
    print(f"rows and trajectories are equal; new is {statistics.median(ratios):.2f} times as fast, ", end="")
    print(f"{statistics.median(totals):.2f} times with the start (medians of {len(ratios)})")


def run(checkout: Path, arguments: list[str], out: Path) -> tuple[float, float]:
    """Seconds from the first episode to the last, and from the command to its end."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "vlnbench", "eval", *arguments, "--out", str(out)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    total = time.perf_counter() - start
    told = re.search(r"^where ([\d.]+) s", done.stderr, re.MULTILINE)
    if done.returncode or told is None:
        raise SystemExit(f"{checkout}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return float(told[1]), total


def content(folder: Path) -> list[list[Any]]:
    """Rows and trajectories, sorted, without times."""
    files = (folder / "episodes.jsonl", folder / "trajectories.jsonl")
    entries = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    for entry in (each for part in entries for each in part):
        entry.pop(TIMES, None)
    return [sorted(part, key=lambda entry: json.dumps(entry, sort_keys=True)) for part in entries]


if __name__ == "__main__":
    main()
