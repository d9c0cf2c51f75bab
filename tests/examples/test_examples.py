from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from vlnbench.conformance import AgentConformance
from vlnbench.interfaces import Agent

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RUNS = ROOT / "results" / "runs"


def run(*arguments: str | Path, cwd: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLES)])}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestFollower(AgentConformance):
    @pytest.fixture(autouse=True)
    def _importable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(EXAMPLES))

    def make_agent(self) -> Agent:
        from vlnbench.rollout.agents import load_agent

        return load_agent("custom_agent:Follower")


def test_two_runs_in_pandas(tmp_path: Path) -> None:
    """The shares of the groups add up to the runs' own SR."""
    blind, tiny = (RUNS / f"houses-r2r-val-unseen-{name}" for name in ("blind", "streamvln-tiny"))
    lines = run(EXAMPLES / "compare_runs.py", blind, tiny, cwd=tmp_path).splitlines()
    rows = [line.rsplit(maxsplit=6) for line in lines[2:]]
    counts = [int(row[1]) for row in rows]
    assert sum(counts) == 900
    for column, successes in ((2, 92), (3, 672)):
        assert sum(n * float(row[column]) / 100 for n, row in zip(counts, rows, strict=True)) == pytest.approx(
            successes, abs=0.5
        )


@pytest.mark.slow
def test_the_custom_agent_is_evaluated_and_its_episode_drawn(houses: Path, tmp_path: Path) -> None:
    evaluate = ("-m", "vlnbench", "eval", "--agent", "custom_agent:Follower", "--data-root", houses, "--envs", "1")
    out = run(*evaluate, "--out", tmp_path / "run", cwd=tmp_path)
    assert "custom_agent:Follower in embedded" in out
    picture = tmp_path / "frame.png"
    draw = (EXAMPLES / "frame_beside_map.py", tmp_path / "run", "--episode", "1", "--step", "3", "--out", picture)
    run(*draw, "--data-root", houses, cwd=tmp_path)
    with Image.open(picture) as image:
        assert image.width > 640 + 200
        assert image.height > 480
        assert len(image.getcolors(1000) or ()) > 50


@pytest.mark.slow
def test_the_matrix_for_a_laptop_runs_whole(tmp_path: Path) -> None:
    out = run("-m", "vlnbench", "matrix", "run", EXAMPLES / "laptop_matrix.yaml", cwd=tmp_path)
    assert "laptop: 2 done" in out
    assert (tmp_path / "results" / "laptop" / "matrix.md").is_file()
