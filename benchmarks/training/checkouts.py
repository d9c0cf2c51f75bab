"""Speed of the training that docs/how-to/train.md shows for streamvln-tiny, another checkout's beside this one's.

    git worktree add /tmp/old COMMIT
    python -m benchmarks.training.checkouts --old /tmp/old --trajectories trajectory_data

`--trajectories` holds the sets R2R and Questions as docs/how-to/train.md makes them; a part of them will do
(`vlnbench collect --tours 400`, `vlnbench data questions --views 4000` and then `--questions 0.2`). `--packed DIR`
has this checkout keep resized frames there, `--dtype` has it compute in another precision. The two take turns, two
processes with one thread each. A step takes the CPU time of the process that has more to do, which on two quiet
cores is its time; other work on the machine counts little. The first steps do not count. Printed are windows per
second, with what the processes would reach if none waited for the other, and how far apart the two logged losses
are at most.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).parents[2]
TIMED = Path(__file__).with_name("timed.py")
LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
COMMAND = """train --checkpoint preset:streamvln-tiny --frames 64 --wording evaluation --no-augment
    --no-gradient-checkpointing --group-by-length --inflection-weight 3.2 --zero 0 --optimizer muon --batch 8
    --accumulation 1 --learning-rate 2e-3 --weight-decay 0.05 --adam-beta2 0.98 --workers 0 --log-every 5"""
WINDOWS, WARM_UP = 16, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--trajectories", type=Path, required=True)
    parser.add_argument("--questions", default="0.5", help="share of the questions; 0 for none")
    parser.add_argument("--packed", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    trees = {"old": options.old.resolve(), "new": ROOT}
    best: dict[str, tuple[float, float]] = {}
    losses: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, tree in trees.items():
            own = [] if name == "old" else ["--dtype", options.dtype]
            if name == "new" and options.packed is not None:
                own += ["--packed", str(options.packed.resolve())]
            seconds, losses[name] = run(tree, own, options)
            pairs = list(zip(*seconds, strict=True))[WARM_UP:]
            found = sum(map(max, pairs)), sum(map(sum, pairs)) / 2
            best[name] = min(found, best.get(name, found))
    windows = WINDOWS * (options.steps - WARM_UP)
    base = best["old"][0]
    rows = [[name, windows / longest, base / longest, windows / mean] for name, (longest, mean) in best.items()]
    print(tabulate(rows, headers=["checkout", "windows/s", "ratio", "without waiting"], floatfmt=".2f"))
    pairs = list(zip(losses["old"], losses["new"], strict=True))
    print(f"losses {pairs}\nat most {max(abs(a - b) / a for a, b in pairs):.1e} of the loss apart")


def run(tree: Path, own: list[str], options: argparse.Namespace) -> tuple[list[list[float]], list[float]]:
    """Train a little with the code of a checkout: CPU seconds of the steps of each process, and logged losses."""
    with tempfile.TemporaryDirectory() as made:
        out, times = Path(made) / "run", Path(made) / "seconds"
        asked = [*COMMAND.split(), "--steps", str(options.steps), "--out", str(out)]
        asked += ["--sets", "R2R", *([f"Questions:{options.questions}"] if float(options.questions) else [])]
        asked += ["--trajectories", str(options.trajectories.resolve()), *own]
        subprocess.run(
            [sys.executable, *LAUNCH, str(TIMED), str(times), *asked],
            cwd=made,
            env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        log = [json.loads(line) for line in (out / "train_log.jsonl").read_text().splitlines()]
        seconds = [json.loads(Path(f"{times}.{rank}").read_text()) for rank in range(2)]
    return seconds, [entry["loss"] for entry in log]


if __name__ == "__main__":
    main()
