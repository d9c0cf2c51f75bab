from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.scripted import GroundTruthReplayAgent, RandomAgent, StopAgent
from tests.evaluation.test_evaluate import plan
from tests.fakes import PlaneEnv
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import evaluate
from vlnbench.evaluation.records import MANIFEST, ROWS
from vlnbench.leaderboard.ranking import format_ranking, rank
from vlnbench.rollout.inline import Inline


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    agents = {"random": RandomAgent(), "gt-replay": GroundTruthReplayAgent(), "stop": StopAgent()}
    for name, agent in agents.items():
        evaluate(plan(name), Inline(agent, PlaneEnv()), tmp_path / name)
    return [tmp_path / name for name in agents]


def test_runs_are_ranked_by_success(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert rank(runs)[0].run.identity.agent == "gt-replay"
    assert main(["rank", *map(str, runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("houses-r2r val_unseen, episodes 9 of 9, plane-1; mean ± SE [95 % interval]")
    assert " ".join(lines[2].split()) == "agent SR (%) SPL (%) OS (%) NE (m) nDTW (%) SDTW (%) n n_errors"
    assert lines[4].startswith("gt-replay (privileged)  100.0 ± 0.0 [")


@pytest.mark.parametrize(
    "field",
    ["benchmark", "fingerprint", "split", "dataset_version", "dataset_sha256", "episodes_sha256", "simulator"],
)
def test_unlike_runs_are_refused_with_the_differing_field(runs: list[Path], field: str) -> None:
    path = runs[1] / MANIFEST
    manifest = json.loads(path.read_text())
    value = "r2r-ce" if field == "benchmark" else "another"
    manifest["identity"][field] = value
    path.write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match=rf"cannot share a table: {field} '.*' / '{value}'$"):
        rank(runs)


def test_an_unfinished_run_is_refused(runs: list[Path]) -> None:
    rows = (runs[0] / ROWS).read_bytes().splitlines(keepends=True)
    (runs[0] / ROWS).write_bytes(b"".join(rows[:4]))
    with pytest.raises(UsageError, match="4 of 9 planned episodes are done"):
        rank(runs)


def test_ranking_one_run_is_its_table(runs: list[Path]) -> None:
    assert "stop" in format_ranking(rank(runs[2:]))
