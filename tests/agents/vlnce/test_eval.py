"""`vlnbench eval --agent vlnce-cma` from a released file to a run folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agents.vlnce import released
from vlnbench.cli import main

SETTINGS = replace(released.tiny(), vocab_size=2504)  # with R2R's vocabulary
WANDERS = [-3.0, 3.0, 0.0, 1.0]
"""Bias of the actions: with made weights alone, episodes end at their first steps."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, state = tmp_path_factory.mktemp("released") / "CMA_PM_DA_Aug.pth", released.weights(SETTINGS)
    state["action_distribution.linear.bias"] = torch.tensor(WANDERS)
    return released.write(path, state, released.settings(SETTINGS))


def rows(folder: Path) -> list[dict[str, Any]]:
    """What was recorded of each episode, without times."""
    recorded = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    return sorted(({key: row[key] for key in ("episode_id", "status", "scores")} for row in recorded), key=str)


def command(checkpoint: Path, root: Path, split: str, out: Path, *options: str) -> list[str]:
    agent = ["eval", "--agent", "vlnce-cma", "--checkpoint", str(checkpoint), "--device", "cpu"]
    data = ["--benchmark", "r2r-vlnce", "--split", split, "--data-root", str(root), "--episodes", "3"]
    return [*agent, *data, "--out", str(out), *options]


def check(checkpoint: Path, root: Path, split: str, out: Path, *options: str) -> None:
    """Three episodes in one simulator, and in two for one agent: the same rows."""
    assert main(command(checkpoint, root, split, out / "one", "--envs", "1", *options)) == 0
    assert main(command(checkpoint, root, split, out / "two", "--envs", "2", *options)) == 0
    found = rows(out / "one")
    assert [row["status"] for row in found] == ["ok"] * 3
    assert max(row["scores"]["steps"] for row in found) > 5
    assert rows(out / "two") == found
    identity = json.loads((out / "one/manifest.json").read_text())["identity"]["agent_identity"]
    assert identity["actions"] == "greedy"
    assert len(identity["checkpoint"]) == 64


@pytest.mark.slow
def test_real_episodes_on_corridor_scenes(checkpoint: Path, shared: Path, tmp_path: Path) -> None:
    check(checkpoint, shared / "data", "val_seen", tmp_path)


@pytest.mark.slow
def test_generated_houses_in_the_layout_of_r2r(checkpoint: Path, houses: Path, tmp_path: Path) -> None:
    """With the sensors of VLN-CE's baselines, for machines without the data: houses' files are R2R-CE's."""
    root = tmp_path / "data"
    shutil.copytree(houses / "datasets/houses_r2r", root / "datasets/R2R_VLNCE_v1-3_preprocessed")
    (root / "scene_datasets").symlink_to(houses / "scene_datasets")
    check(checkpoint, root, "val_unseen", tmp_path, "--allow-partial")


def whole(path: Path) -> Path:
    return path


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:5000])
    return path


def rxr(path: Path) -> Path:
    return released.write_tiny(path, rxr=True)


def absent(path: Path) -> Path:
    return path.with_name("none.pth")


@pytest.mark.parametrize(
    ("change", "options", "line"),
    [
        (whole, ["--benchmark", "houses-r2r"], "'vlnce-cma' does not fit benchmark 'houses-r2r': needs width 224"),
        (whole, ["--agent", "vlnce-seq2seq"], "use --agent vlnce-cma"),
        (cut, [], "is damaged or cut off"),
        (rxr, [], "reads the BERT features of RxR's instructions"),
        (rxr, ["--text-features", "."], "does not fit benchmark 'r2r-vlnce': needs width 640 (it has 224)"),
        (absent, [], "none.pth cannot be read"),
    ],
)
def test_mistakes_end_in_one_line_and_write_nothing(
    checkpoint: Path,
    houses: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], Path],
    options: list[str],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    root, mine = tmp_path / "data", tmp_path / "mine.pth"
    shutil.copytree(houses / "datasets/houses_r2r", root / "datasets/R2R_VLNCE_v1-3_preprocessed")
    (root / "datasets/houses_r2r").symlink_to(houses / "datasets/houses_r2r")
    (root / "scene_datasets").symlink_to(houses / "scene_datasets")
    shutil.copyfile(checkpoint, mine)
    given = command(change(mine), root, "val_unseen", tmp_path / "run", "--allow-partial", *options)
    assert main(given) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert line in told
    assert not (tmp_path / "run").exists()
