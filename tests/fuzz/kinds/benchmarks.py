"""Benchmark files: YAML, read into a protocol, and the protocol read back from a manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from random import Random

from tests.fuzz.judge import Builder
from tests.fuzz.values import changed_bytes, changed_yaml
from vlnbench.data.benchmark_files import recorded_benchmark
from vlnbench.data.benchmarks import get_benchmark

NAME = "benchmark.yaml"
HONEST = """
name: my-r2r
version: 2
summary: our building
reader: r2r
dataset_folders: [my_r2r, r2r]
splits: {val_unseen: 1200, train: null}
body: {like: rxr-habitat, turn_deg: 30, camera: {height_m: 0.88}, depth_range_m: [0.5, 5.0]}
roles: [guide]
languages: [en-US]
metrics: {success_distance_m: 2.0, max_steps: 100}
"""


def read(folder: Path) -> None:
    found = get_benchmark(str(folder / NAME))
    protocol = json.loads(json.dumps(asdict(found)))
    assert recorded_benchmark(protocol, found.fingerprint, "run") == found


def write(folder: Path, random: Random) -> None:
    changed = changed_bytes if random.random() < 0.3 else changed_yaml
    (folder / NAME).write_bytes(changed(HONEST.encode(), random))


def _text(make: Callable[[], str]) -> Builder:
    return lambda folder: (folder / NAME).write_text(make(), encoding="utf-8") and None


corpus: Mapping[str, tuple[Builder, str]] = {
    "honest": (_text(lambda: HONEST), ""),
    "deep": (_text(lambda: "body: " + 3000 * "["), "not a benchmark file"),
    "doubled": (_text(lambda: HONEST + "name: other\n"), "stands twice"),
    "aliases": (_text(lambda: HONEST.replace("[my_r2r, r2r]", "&a [*a]")), "an alias of what it is in"),
    "not a number": (_text(lambda: HONEST.replace("2.0", ".nan")), "metrics.success_distance_m"),
    "like a list": (
        _text(lambda: HONEST.replace("rxr-habitat", f"[{'1, ' * 900}]")),
        "body.like: unknown benchmark",
    ),
    "long key": (_text(lambda: HONEST + f"{'k' * 900}: 1\n"), "extra inputs are not permitted"),
    "huge number": (_text(lambda: HONEST.replace("100}", f"{'9' * 900}}}")), "metrics.max_steps"),
}
