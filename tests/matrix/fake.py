"""Stands in for `vlnbench`: writes the records of training and evaluation without doing either.

What becomes of a training is said by the environment variable FAKE, a JSON object: tunable parts -> behavior.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from vlnbench.util.machine import CORES

STEPS = 4
IDENTITY = {
    "identity_version": 2,
    "fingerprint": "f" * 12,
    "dataset_sha256": "d" * 64,
    "dataset_version": "houses-2",
    "partial": False,
    "episodes": 4,
    "split_size": 4,
    "episodes_sha256": "e" * 64,
    "agent_code": None,
    "agent_identity": {},
    "simulator": "fake",
    "seed": 0,
}


def options(arguments: list[str]) -> dict[str, str]:
    """Options by name; the words of a list joined by commas."""
    found: dict[str, str] = {}
    words: list[str] = []
    name = ""
    for argument in arguments:
        if argument.startswith("--"):
            name, _, value = argument.removeprefix("--").partition("=")
            words = [value] if value else []
        else:
            words.append(argument)
        found[name] = ",".join(words)
    return found


def write(path: Path, value: Any) -> None:
    """Replace a file in one step, as the program does."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(value))
    part.replace(path)


def train(given: dict[str, str]) -> int:
    out = Path(given["out"])
    behavior = json.loads(os.environ.get("FAKE", "{}")).get(given["tunable-parts"], "")
    out.mkdir(exist_ok=True)
    (out / "pid").write_text(str(os.getpid()))
    if "RANK" in os.environ:
        raise RuntimeError("a launcher's variables came through")
    schedule = {"steps": STEPS, "windows_per_step": 2}
    annotations = Path(given["trajectories"], "R2R", "annotations.json").read_bytes()
    sets = json.dumps([["R2R", 1.0, hashlib.sha256(annotations).hexdigest()]])
    digest = hashlib.sha256(sets.encode()).hexdigest()[:16]
    recorded = {"started_from": f"preset {given['checkpoint'].removeprefix('preset:')}", "data_sha256": digest}
    write(out / "train.json", {"schedule": schedule, "world_size": 1, **recorded})
    data = {"R2R": {"trajectories": 3, "instructions": 9, "windows": 12, "weight": 1.0}}
    trainable = dict.fromkeys(given["tunable-parts"].split(","), 100)
    write(out / "counts.json", {"parameters": 1000, "trainable": trainable, "data": data})
    if behavior == "oom":
        write(out / "out_of_memory.json", {"rank": 0, "allocated": 79 * 10**9, "reserved": 80 * 10**9})
        print("out of memory")
        return 3
    if behavior == "stuck":  # as one of several processes leaves it to torchrun
        write(out / "hang.json", {"rank": 1, "line": "makes no progress"})
        return 1
    if behavior == "crash":
        print("\n".join(f"line {i}" for i in range(100)), file=sys.stderr)
        return 7
    done = int((out / "state").read_text()) if (out / "state").exists() else 0
    memory = [{"allocated": None, "reserved": None, "device": None, "host": 1, "gpu": None}]
    for step in range(done + 1, STEPS + 1):
        with (out / "train_log.jsonl").open("a") as log:
            entry = {"step": step, "epoch": step / 6, "loss": 1 / step, "learning_rates": {}}
            log.write(json.dumps({**entry, "windows_per_s": 4.0, "memory": memory}) + "\n")
        write(out / "state", step)
        while step == 2 and behavior == "hang" and not Path("go on").exists():
            time.sleep(0.01)
    (out / "model").mkdir()
    return 0


def evaluate(given: dict[str, str]) -> int:
    out = Path(given["out"])
    out.mkdir(exist_ok=True)
    assert given["agent"] != "streamvln" or Path(given["checkpoint"]).is_dir()
    rate = {"val_seen": 0.5, "val_unseen": 0.25}[given["split"]] + 0.01 * len(given.get("agent", ""))
    estimate = {"mean": rate, "n": 4, "clusters": 2, "se": 0.1, "low": rate - 0.2, "high": rate + 0.2}
    own = {"benchmark": given["benchmark"], "split": given["split"], "agent": given["agent"]}
    identity = {**IDENTITY, **own, "repeats": int(given.get("repeats", 1))}
    write(out / "manifest.json", {"identity": identity, "git": None, "vlnbench": "0"})
    summary = {"n_done": 4, "n_planned": 4, "n_errors": 0, "failures": {}, "identity": identity}
    write(out / "summary.json", {**summary, "metrics": {"SR": estimate, "SPL": {**estimate, "mean": rate / 2}}})
    return 0


def collect(given: dict[str, str]) -> int:
    out = Path(given["out"])
    out.mkdir(parents=True)
    write(out / "annotations.json", [])
    return 0


def score(given: dict[str, str]) -> int:
    out = Path(given["out"])
    out.parent.mkdir(parents=True)
    sets = given["sets"].split(",")
    if not all((Path(given["trajectories"]) / name / "annotations.json").is_file() for name in sets):
        return 2
    found = {"mean": 0.5, "n": 10, "clusters": 2, "se": 0.1, "low": 0.3, "high": 0.7}
    scores = {"actions": 10, "loss": found, "accuracy": found, "changes": {**found, "mean": 0.25}, "stop": None}
    frames = {"own": scores, "gray": {**scores, "loss": {**found, "mean": 1.5}}}
    write(out, {"sets": {name: {"sha256": "a", "frames": frames} for name in sets}})
    return 0


def main() -> int:
    command, *arguments = sys.argv[1:]
    print(f"share of the cores: {os.environ.get(CORES, 'all')}")
    given = options(arguments)
    with Path("calls.txt").open("a") as calls:
        calls.write(f"{command} {given.get('tunable-parts', given.get('split', ''))}\n")
    return {"train": train, "eval": evaluate, "collect": collect, "score": score}[command](given)


if __name__ == "__main__":
    raise SystemExit(main())
