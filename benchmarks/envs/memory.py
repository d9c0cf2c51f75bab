"""Resident memory of an evaluation by its number of simulators: the agent's process, and those below it.

Run as a script: `python -m benchmarks.envs.memory --data-root data`. Every number of simulators is an
evaluation of its own, looked at five times a second. Memory is the proportional set size (PSS), in which a page
that processes share counts in equal parts; the moment with the highest sum of all processes is reported.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

INTERVAL_S = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--agent", default="streamvln-tiny")
    parser.add_argument("--episodes", type=int, default=8, help="for every simulator")
    parser.add_argument("--envs", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    print(f"{'envs':>4s} {'agent MiB':>10s} {'processes below it':>19s} {'MiB each':>9s} {'all MiB':>8s}")
    for envs in options.envs:
        agent, below = highest(options, envs)
        each, total = sum(below) / len(below), agent + sum(below)
        print(f"{envs:4d} {agent:10.0f} {len(below):19d} {each:9.0f} {total:8.0f}", flush=True)


def highest(options: argparse.Namespace, envs: int) -> tuple[float, list[float]]:
    """MiB of the agent's process and of each process below it (simulators, their servers) at the highest sum."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "vlnbench", "eval", "--agent", options.agent, "--split", "val_unseen"]
        command += ["--data-root", str(options.data_root), "--episodes", str(options.episodes * envs)]
        command += ["--envs", str(envs), "--out", f"{folder}/run"]
        most: tuple[float, list[float]] = (0.0, [])
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as run:
            while run.poll() is None:
                children = [mib for pid in descendants(run.pid) if (mib := pss_mib(pid)) > 1]
                now = pss_mib(run.pid), children
                if len(children) >= envs and now[0] + sum(now[1]) > most[0] + sum(most[1]):
                    most = now
                time.sleep(INTERVAL_S)
        if run.returncode:
            raise SystemExit(f"the evaluation ended with exit code {run.returncode}")
    return most


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        found += [*children, *(below for child in children for below in descendants(child))]
    return found


def pss_mib(pid: int) -> float:
    """Proportional set size; 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    main()
