from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agents.base import EpisodeAgent
from agents.scripted import GroundTruthReplayAgent, RandomAgent
from tests.fakes import PlaneEnv
from tests.runs import BreaksOnFive, nine_episodes, record, write_dataset
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import evaluate
from vlnbench.evaluation.metrics import METRICS_VERSION
from vlnbench.evaluation.records import MANIFEST, ROWS, SUMMARY, TRAJECTORIES, read_rows
from vlnbench.evaluation.rescore import BACKUP, rescore
from vlnbench.interfaces import Action, Observation
from vlnbench.rollout.inline import Inline
from vlnbench.util.durable.locks import locked


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data")


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Path:
    """A run of a random agent in which one episode broke."""
    record(data, BreaksOnFive(), tmp_path / "run")
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def edit_rows(folder: Path, change) -> None:
    rows = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
    for row in rows:
        change(row)
    (folder / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_rows_of_the_same_metrics_come_out_equal_and_nothing_is_written(run: Path, data: Path) -> None:
    before = contents(run)
    result = rescore(run, data)
    assert (result.n_changed, result.changed) == (0, {})
    assert result.rows == read_rows(run)
    assert json.loads(before[SUMMARY])["metrics_version"] == METRICS_VERSION
    assert json.loads(before[SUMMARY])["failures"]["error"] == result.summary.n_errors == 1
    assert contents(run) == before


def test_repeats_and_subsets_are_planned_as_in_the_run(data: Path, tmp_path: Path) -> None:
    record(data, RandomAgent(), tmp_path / "run", count=4, repeats=3, seed=7)
    result = rescore(tmp_path / "run", data)
    assert (result.n_changed, result.summary.n_planned, result.summary.n_done) == (0, 12, 12)
    assert result.summary.complete


def test_writing_restores_spoilt_rows_and_keeps_a_copy(run: Path, data: Path) -> None:
    before = contents(run)
    edit_rows(run, lambda row: row["scores"].update(spl=0.5) if row["episode_id"] in "12" else None)
    spoilt = (run / ROWS).read_bytes()
    (run / SUMMARY).unlink()
    result = rescore(run, data, write=True)
    assert (result.n_changed, result.changed) == (2, {"spl": 2})
    assert contents(run) == {**before, BACKUP: spoilt}
    assert rescore(run, data, write=True).n_changed == 0
    assert contents(run) == {**before, BACKUP: spoilt}


def test_a_run_of_an_older_version_is_brought_up_to_date(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    plan = record(data, RandomAgent(), run)
    before = contents(run)

    def forget(row: dict) -> None:
        del row["scores"]["cls"], row["scores"]["failure"]

    edit_rows(run, forget)
    manifest = json.loads(before[MANIFEST])
    del manifest["metrics_version"]
    (run / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match=r"scored with metrics version None, this is 1; run `vlnbench rescore"):
        evaluate(plan, Inline(RandomAgent(), PlaneEnv()), run)
    result = rescore(run, data, write=True)
    assert (result.n_changed, result.changed) == (9, {"cls": 9, "failure": 9})
    assert {name: content for name, content in contents(run).items() if name in (ROWS, SUMMARY)} == {
        name: before[name] for name in (ROWS, SUMMARY)
    }
    assert evaluate(plan, Inline(RandomAgent(), PlaneEnv()), run) == result.summary


def test_a_run_still_under_way_is_partial_and_is_not_written_to(run: Path, data: Path) -> None:
    lines = (run / ROWS).read_bytes().splitlines(keepends=True)
    (run / ROWS).write_bytes(b"".join(lines[:4]) + lines[4][:20])
    assert (rescore(run, data).summary.n_done, rescore(run, data).summary.complete) == (4, False)
    with locked(run), pytest.raises(UsageError, match="another process is writing"):
        rescore(run, data, write=True)


def spoil_dataset(run: Path, data: Path) -> str:
    episodes = nine_episodes()
    write_dataset(data, episodes=episodes[:8])
    return r"field 'identity.dataset_sha256': the run has '\w{64}', but .*val_unseen.json.gz .* has"


def spoil_fingerprint(run: Path, data: Path) -> str:
    change_identity(run, fingerprint="0" * 12)
    return (
        "field 'identity.fingerprint': the run has '000000000000', but benchmark houses-r2r of this vlnbench has"
    )


def spoil_choice(run: Path, data: Path) -> str:
    change_identity(run, episodes=4)
    return "field 'identity.episodes_sha256'"


def spoil_count(run: Path, data: Path) -> str:
    change_identity(run, episodes="all")
    return "field 'identity.episodes': expected int, found 'all'"


def spoil_seed(run: Path, data: Path) -> str:
    change_identity(run, seed="zero")
    return "field 'identity.seed': expected int, found 'zero'"


def spoil_split(run: Path, data: Path) -> str:
    change_identity(run, split="val_unsen")
    return "unknown split of houses-r2r 'val_unsen'"


def spoil_trajectories(run: Path, data: Path) -> str:
    lines = (run / TRAJECTORIES).read_bytes().splitlines(keepends=True)
    (run / TRAJECTORIES).write_bytes(b"".join(lines[1:]))
    return r"trajectories.jsonl: episode 0, repeat 0: the trajectory is missing"


def spoil_distances(run: Path, data: Path) -> str:
    lines = [json.loads(line) for line in (run / TRAJECTORIES).read_text().splitlines()]
    lines[0]["goal_distances"].pop()
    (run / TRAJECTORIES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return r"trajectories.jsonl: line 1: not a trajectory \(field 'collided' or 'goal_distances': expected 57 and"


def spoil_manifest(run: Path, data: Path) -> str:
    (run / MANIFEST).unlink()
    return "not a run folder"


def change_identity(run: Path, **changes: object) -> None:
    manifest = json.loads((run / MANIFEST).read_text())
    manifest["identity"].update(changes)
    (run / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_dataset,
        spoil_fingerprint,
        spoil_choice,
        spoil_count,
        spoil_seed,
        spoil_split,
        spoil_trajectories,
        spoil_distances,
        spoil_manifest,
    ],
)
@pytest.mark.parametrize("write", [False, True])
def test_what_cannot_be_rescored_is_one_line_and_stays_as_it_is(run: Path, data: Path, spoil, write: bool) -> None:
    message = spoil(run, data)
    before = contents(run)
    with pytest.raises(UsageError, match=message) as caught:
        rescore(run, data, write=write)
    assert len(str(caught.value).splitlines()) == 1
    assert contents(run) == before


def test_the_command_prints_the_table_and_what_changed(run: Path, data: Path, capsys) -> None:
    edit_rows(run, lambda row: row["scores"].update(steps=999) if row["status"] == "ok" else None)
    assert main(["rescore", str(run), "--data-root", str(data)]) == 0
    shown = capsys.readouterr().out
    assert "CLS (%)" in shown
    assert "n_errors 1" in shown
    assert "how episodes ended:" in shown
    assert "8 of 9 rows changed (steps in 8)\nnothing was written" in shown
    assert main(["rescore", str(run), "--data-root", str(data), "--write"]) == 0
    assert f"the rows before: {run / BACKUP}" in capsys.readouterr().out
    assert main(["rescore", str(run), "--data-root", str(data), "--write"]) == 0
    assert "0 of 9 rows changed" in capsys.readouterr().out
    assert main(["rescore", str(run / "nothing"), "--write"]) == 2
    assert "not a run folder" in capsys.readouterr().err


class StopsNever(EpisodeAgent):
    def act_one(self, observation: Observation) -> Action:
        return Action.MOVE_FORWARD


def test_the_table_counts_how_episodes_ended(data: Path, tmp_path: Path) -> None:
    record(data, StopsNever(), tmp_path / "never")
    assert rescore(tmp_path / "never", data).summary.failures == {
        "success": 0,
        "passed_goal": 9,
        "stopped_early": 0,
        "stuck": 0,
        "never_stopped": 0,
        "unreachable": 0,
        "error": 0,
    }
    record(data, GroundTruthReplayAgent(), tmp_path / "replay")
    assert rescore(tmp_path / "replay", data).summary.failures["success"] == 9


@pytest.mark.slow
def test_a_run_on_real_episodes_rescores_to_itself(shared: Path, tmp_path: Path) -> None:
    """In processes of their own: evaluated through the simulator, scored again without it."""

    def vlnbench(*arguments: str) -> str:
        code = "import sys; from vlnbench.cli import main; code = main(); "
        code += "print([name for name in ('habitat', 'numba') if name in sys.modules]); raise SystemExit(code)"
        command = [sys.executable, "-c", code, *arguments, "--data-root", str(shared / "data")]
        result = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr
        return result.stdout

    options = ["--benchmark", "r2r-ce", "--split", "val_seen", "--episodes", "12", "--agent", "random"]
    evaluated = vlnbench("eval", *options, "--out", "run")
    rescored = vlnbench("rescore", "run")
    table, _, rest = rescored.partition("0 of 12 rows changed\n")
    assert evaluated.startswith(table)
    assert rest.endswith("\n[]\n")  # neither the simulator nor habitat-lab was loaded
