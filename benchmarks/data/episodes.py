"""Time and memory of loading a split as large as EnvDrop, made up on the spot.

    python -m benchmarks.data.episodes

Limits: 20 s of processor time for the episode file; 1.5 GB for the episodes together with their ground truth.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.synthetic import write_envdrop
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.datasets import locate
from vlnbench.data.episodes import read_episodes, read_ground_truth

EPISODES = 146304
SECONDS = 20.0
MEGABYTES = 1500.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--load", type=Path, help="load below this data root only; used by the script itself")
    options = parser.parse_args()
    if options.load:
        load(options.load, options.episodes)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = write_envdrop(Path(folder, "datasets", "R2R_VLNCE_v1-3_preprocessed", "envdrop"), options.episodes)
        print(f"{path.name}: {path.stat().st_size / 1e6:.0f} MB gzipped", flush=True)
        command = [sys.executable, "-m", __spec__.name, "--load", folder, "--episodes", str(options.episodes)]
        raise SystemExit(subprocess.run(command, check=False).returncode)


def load(data_root: Path, count: int) -> None:
    """Load the split in this process, print its cost and fail if it is over the limits."""
    benchmark = replace(get_benchmark("r2r-ce"), splits={"envdrop": count})
    files = locate(benchmark, "envdrop", data_root)
    print(f"before: {peak_megabytes():.0f} MB")
    start = time.process_time()
    episodes = read_episodes(benchmark, files)
    seconds = time.process_time() - start
    print(f"{len(episodes)} episodes: {seconds:.1f} s, peak {peak_megabytes():.0f} MB")
    start = time.process_time()
    found = read_ground_truth(episodes, files)
    peak = peak_megabytes()
    print(f"{len(found)} ground-truth entries: {time.process_time() - start:.1f} s more, peak {peak:.0f} MB")
    if seconds > SECONDS or peak > MEGABYTES:
        raise SystemExit(f"over the limits of {SECONDS:.0f} s and {MEGABYTES:.0f} MB")


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
