"""A matrix.json as a run leaves it, without a run."""

from __future__ import annotations

import random
from dataclasses import asdict
from itertools import product
from typing import Any

from tests.runs import make_identity


def estimate(mean: float) -> dict[str, Any]:
    return {"mean": mean, "n": 300, "clusters": 10, "se": 0.03, "low": max(0, mean - 0.06), "high": mean + 0.06}


def result(mean: float) -> dict[str, Any]:
    identity = asdict(make_identity(episodes=300, split_size=300, simulator="embedded-2"))
    metrics = {"SR": estimate(mean), "SPL": estimate(0.9 * mean)}
    scenes = {f"s{i}": [30, 30 * mean + (i - 4.5)] for i in range(10)}
    return {
        "episodes": 300,
        "n_errors": 0,
        "metrics": metrics,
        "scenes": {"SR": scenes, "SPL": {scene: [n, 0.9 * total] for scene, (n, total) in scenes.items()}},
        "failures": {},
        "identity": identity,
        "git": None,
    }


def row(
    labels: dict[str, str], sr: float | None, planned: float, allocated: float | None = None
) -> dict[str, Any]:
    """A finished setting, or with no SR one that ran out of memory."""
    vram = {"planned": planned, "allocated": allocated, "reserved": allocated, "device": None, "fits": "yes"}
    machine = {
        "cpu": "Some CPU",
        "cores": 2,
        "gpus": [],
        "packages": {"torch": "2"},
        "vlnbench": "0",
        "git": "abc",
    }
    failed = sr is None
    return {
        "name": ", ".join(labels.values()),
        "key": "00000000",
        "train_key": "/".join(labels.values()),
        "labels": labels,
        "status": "oom" if failed else "done",
        "reason": "train: out of GPU memory" if failed else None,
        "stage": "train" if failed else None,
        "exit_code": 3 if failed else None,
        "log": "runs/log.txt" if failed else None,
        "tail": ["some | line", "```", "<b>"] if failed else [],
        "trainable_parameters": 1_234_567,
        "parameters": 2_345_678,
        "data": {"R2R": {"trajectories": 10, "instructions": 30, "windows": 40, "weight": 1.0}},
        "steps": 100,
        "steps_done": 100,
        "epochs": 1.0,
        "loss": 0.5,
        "windows_per_s": 12.3,
        "seconds": {"train": 600.0, "val_seen": 10.0, "val_unseen": 11.0},
        "vram": vram,
        "host": 3_000_000_000,
        "machine": machine,
        "results": {
            "val_seen": None if sr is None else result(sr),
            "val_unseen": None if sr is None else result(0.8 * sr),
        },
    }


def make_document(
    axes: dict[str, list[str]], measured: bool = False, failed: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Every combination of the labels, with success that grows with the labels' places."""
    rng = random.Random(0)
    rows = []
    for number, chosen in enumerate(product(*axes.values())):
        places = [labels.index(label) for labels, label in zip(axes.values(), chosen, strict=True)]
        sr = 0.1 + 0.04 * sum(places) + rng.uniform(0, 0.05)
        planned = 1e9 * (2 + places[0] + 0.1 * rng.random())
        labels = dict(zip(axes, chosen, strict=True))
        rows.append(row(labels, None if number in failed else sr, planned, 0.9 * planned if measured else None))
    splits = ["val_seen", "val_unseen"]
    return {"format": 1, "name": "a matrix", "key": "0", "axes": axes, "splits": splits, "rows": rows}
