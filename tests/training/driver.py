"""Trains several times in one process, which saves the seconds that importing DeepSpeed takes.

Run by `run_all` in a process of its own: DeepSpeed changes global state and warns about things of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from vlnbench.errors import UsageError

ROOT = Path(__file__).parents[2]
PATHS = ("out", "trajectories", "tokenizer", "vision_tower", "deepspeed", "feature_cache", "packed", "data_root")
LISTS = ("tunable_parts", "sets", "steps_of", "vocabulary_of", "tracker", "rewards")


def run_all(requests: Sequence[Mapping[str, Any]], processes: int = 1, threads: str = "1") -> list[dict[str, Any]]:
    """Train with each set of options in turn; returns {"loss", "steps"} or {"error"} of each.

    threads: OMP_NUM_THREADS; empty: as if it were not set.
    """
    pytest.importorskip("deepspeed", reason="needs deepspeed: pip install -e '.[test]'")
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(launcher if processes > 1 else []), "-m", "tests.training.driver"]
    result = subprocess.run(
        [*command, json.dumps(list(requests), default=str)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    lines: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines() if line[:1] == "{"]
    return lines


def kill_after(request: Mapping[str, Any], step: int) -> None:
    """Train in a process that is killed as soon as the state of a step is there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.training.driver", json.dumps([request], default=str)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    state, deadline = Path(request["out"]) / "state" / f"step-{step}", time.monotonic() + 600
    while not state.exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.kill()
    process.wait()


def log_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "train_log.jsonl").read_text().splitlines()]


def main(requests: list[dict[str, Any]]) -> None:
    from vlnbench.training.family.find import find_family
    from vlnbench.training.objectives import get_objective
    from vlnbench.training.setup import connected, find_process
    from vlnbench.training.trainer import train

    process = find_process()
    with connected(process):
        for request in requests:
            for name in PATHS:
                if request.get(name) is not None:
                    request[name] = Path(request[name])
            for name in LISTS:
                if name in request:
                    request[name] = tuple(request[name])
            try:
                family = find_family(request.get("family", ""), request["checkpoint"])[0].training
                kind = get_objective(request.get("objective", "supervised")).train_options(family)
                trained = train(kind(**request))
                answer: dict[str, Any] = {"loss": trained.loss, "steps": trained.steps}
            except UsageError as error:
                answer = {"error": str(error)}
            if process.first:
                print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
