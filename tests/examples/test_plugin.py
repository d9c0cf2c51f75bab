"""The plug-in of examples/plugin, installed as a user would and used from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from vlnbench.training.family.find import get_family
from vlnbench.training.family.trains import rule_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed it."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    target = tmp_path_factory.mktemp("plugin") / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--target", target, ROOT / "examples" / "plugin"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return target


def vlnbench(site: Path, cwd: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}
    command = [sys.executable, "-m", "vlnbench", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
def test_everything_it_adds_is_listed_with_its_name(site: Path, tmp_path: Path) -> None:
    done = vlnbench(site, tmp_path, "list")
    assert (done.returncode, done.stderr) == (0, "")
    added = [line.split()[0] for line in done.stdout.splitlines() if line.endswith("vlnbench-example 1.0")]
    assert added == ["left-hand", "frozen-norms", "houses-wide", "dim", "lines"]


@pytest.mark.slow
def test_its_family_leaves_norms_alone(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(site))
    trains = get_family("frozen-norms").load_trains()
    network = nn.ModuleDict(
        {"layers": nn.ModuleDict({"input_layernorm": nn.LayerNorm(2), "up_proj": nn.Linear(2, 2)})}
    )
    rules = trains.parts(nn.ModuleDict({"model": network}), None)
    assert rule_of(rules, "model.layers.up_proj.weight").trains == "with its part"
    assert rule_of(rules, "model.layers.input_layernorm.weight").trains == "never"
    assert rule_of(rules, "model.layers.input_layernorm.weight").part == "mm_language_model"


@pytest.mark.slow
def test_its_agent_walks_its_benchmark_in_its_environment(site: Path, houses: Path, tmp_path: Path) -> None:
    names = ("--agent", "left-hand", "--benchmark", "houses-wide", "--env", "dim", "--tracker", "lines")
    run = tmp_path / "run"
    where = ("--data-root", houses, "--envs", "1", "--out", run)
    done = vlnbench(site, tmp_path, "eval", *names, "--patience", "3", *where)
    assert done.returncode == 0, done.stderr
    assert "left-hand in embedded-2-dim" in done.stdout
    identity = json.loads((run / "manifest.json").read_text())["identity"]
    assert (identity["benchmark"], identity["agent"]) == ("houses-wide", "left-hand")
    assert identity["agent_identity"] == {"patience": 3}
    rows = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    assert {row["scores"]["steps"] for row in rows} == {4}
    points = [json.loads(line) for line in (run / "lines.jsonl").read_text().splitlines()]
    assert [point.get("step") for point in points] == [*range(1, len(rows) + 1), None]
    # without the plug-in the run is still read
    shown = subprocess.run(
        [sys.executable, "-m", "vlnbench", "rescore", str(run), "--data-root", str(houses)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert shown.returncode == 0, shown.stderr
