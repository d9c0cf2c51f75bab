"""From the published downloads to the table, as a user goes, with kills in between."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.published_root import UNSEEN, WIDTH, publish

ROOT = Path(__file__).parents[2]

SMALL = """
  cpu:    # tiny networks, a few windows and episodes
    train: {{checkpoint: "preset:{preset}", batch: 1, accumulation: 4, workers: 0, save_every: 1,
            log_every: 1, {more}}}
    evaluate: {{benchmark: r2r-ce, splits: [val_seen, val_unseen], envs: 1, episodes: 2, max_new_tokens: 8,
               allow_partial: true}}
    run: {{gpus_per_setting: 0}}
"""
"""What a user adds to a shipped file for hardware of his own: its last section is `hardware`."""


@pytest.fixture(scope="module")
def published(houses: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data root `data`, of which all frames have been rendered, and the matrix files."""
    folder = tmp_path_factory.mktemp("published")
    frames = publish(houses, folder / "data")
    for family, more in (("streamvln", "frames: 8, history: 2"), ("janusvln", "epochs: 0.05")):
        shipped = (ROOT / "examples" / f"{family}_matrix.yaml").read_text()
        added = SMALL.format(preset=f"{family}-tiny", more=more)
        (folder / f"{family}_matrix.yaml").write_text(shipped + added)
    said = vlnbench("matrix", "run", "streamvln_matrix.yaml", "--hardware", "cpu", cwd=folder, code=2)
    for name in UNSEEN:
        walks = Path("data", "trajectory_data", name)
        assert f"`vlnbench data render {walks}` (needed by " in said
        render(folder, walks, frames[name])
    return folder


def vlnbench(*arguments: str | Path, cwd: Path, code: int = 0) -> str:
    """A command, run to its end; returns what it prints."""
    with started(*arguments, cwd=cwd) as process:
        said, _ = process.communicate(timeout=3600)
    assert process.returncode == code, said
    return said


def started(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vlnbench", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=cwd, env=environment, **pipes)


def killed(*arguments: str | Path, cwd: Path, when: Callable[[], bool]) -> None:
    """A command that is killed as soon as something is so, which it must become."""
    with started(*arguments, cwd=cwd) as process:
        while not when():
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def render(folder: Path, walks: Path, expected: Path) -> None:
    """Killed after the first walk; what is there after that and another call is what was walked."""
    command = ("data", "render", walks, "--frame-width", str(WIDTH))
    images = folder / walks / "images"
    killed(*command, cwd=folder, when=lambda: any(images.glob("[!.]*")))
    assert "4 of 4 walks rendered" in vlnbench(*command, cwd=folder)
    assert contents(images) == contents(expected)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.jpg")}


def row(results: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((results / "matrix.json").read_text())
    return next(each for each in found["rows"] if each["name"] == name)


def outcome(work: Path, row: dict[str, Any]) -> Any:
    """What a training learned, loss by loss, and how its checkpoint does, episode by episode."""
    run = work / "train" / row["train_key"] / "run"
    losses = [json.loads(line)["loss"] for line in (run / "train_log.jsonl").read_text().splitlines()]
    weights = hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()
    return losses, weights, {split: each["metrics"] for split, each in row["results"].items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "parts", "data", "count"),
    [
        ("janusvln", "mergers", "R2R", 2),
        pytest.param("janusvln", "mergers", "*", 9, marks=pytest.mark.long),
        pytest.param("streamvln", "projector", "*", 11, marks=pytest.mark.long),
    ],
)
def test_a_shipped_matrix_makes_its_table_though_it_is_killed(
    published: Path, tmp_path: Path, family: str, parts: str, data: str, count: int
) -> None:
    """Killed in the middle of a training and gone on with, it is as if it had not been."""
    command = ("matrix", "run", f"{family}_matrix.yaml", "--hardware", "cpu")
    one = f"{parts}, R2R + EnvDrop, seed=0"
    straight, table = tmp_path / "straight", tmp_path / "table"
    vlnbench(*command, "--only", one, "--out", straight, "--results", straight / "results", cwd=published)
    alone = row(straight / "results", one)
    again = (*command, "--only", one, f"{parts}, {data}, seed=0", "--out", tmp_path / "work", "--results", table)
    log = tmp_path / "work" / "train" / alone["train_key"] / "run" / "train_log.jsonl"
    killed(*again, cwd=published, when=lambda: log.exists() and log.read_text().count("\n") >= 2)
    assert f"{count} done" in vlnbench(*again, cwd=published)
    assert outcome(tmp_path / "work", row(table, one)) == outcome(straight, alone)
    found = json.loads((table / "matrix.json").read_text())
    done = [each for each in found["rows"] if each["status"] == "done"]
    assert len(done) == count
    for each in done:
        assert ("EnvDrop" in each["name"]) == any(name.endswith("EnvDrop") for name in each["data"])
        assert each["steps_done"] == each["steps"] > 0
        assert all(result["episodes"] == 2 for result in each["results"].values())
    effects = (table / "effects.csv").read_text()
    assert "EnvDrop" in effects
    page = (table / "matrix.md").read_text()
    assert all(each["labels"]["data"] in page for each in done)
