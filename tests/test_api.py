from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import vlnbench
from agents.scripted import StopAgent
from tests.runs import BreaksOnFive, record, with_instruction_ids, write_dataset
from vlnbench.errors import UsageError
from vlnbench.evaluation.recorded import load_run
from vlnbench.evaluation.summary import METRICS, summarize

RUNS = Path(__file__).parents[1] / "results" / "runs"
PLANE = {"benchmark": "rxr-ce", "allow_partial": True, "env": "tests.faulty:plane"}


@pytest.fixture
def data_root(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data")


def test_rows_in_pandas_have_the_means_of_the_table(data_root: Path, tmp_path: Path) -> None:
    record(data_root, BreaksOnFive(), tmp_path / "run", repeats=2)
    rows = vlnbench.load(tmp_path / "run")
    assert list(rows.columns[:5]) == ["run", "agent", "benchmark", "split", "episode_id"]
    assert len(rows) == 18
    broken = rows[rows["status"] == "error"]
    assert broken["episode_id"].tolist() == ["5", "5"]
    assert broken["success"].tolist() == [0.0, 0.0]
    assert broken["distance_to_goal"].isna().all()
    assert "the fifth is too much" in broken["reason"].iloc[0]
    run = load_run(tmp_path / "run")
    summary = summarize(run.rows.values(), list(run.rows), run.identity)
    for metric in METRICS:
        found = summary.metrics[metric.label]
        assert found is not None
        assert rows[metric.field].mean() == pytest.approx(found.mean)
        assert rows[metric.field].count() == found.n
    assert rows.attrs["identity"][str(tmp_path / "run")]["repeats"] == 2


def test_the_dataset_adds_what_an_episode_is(data_root: Path, tmp_path: Path) -> None:
    record(data_root, StopAgent(), tmp_path / "run")
    rows = vlnbench.load(str(tmp_path / "run"), data_root)
    assert rows.set_index("episode_id").loc["4", ["length", "turns", "words"]].tolist() == [6.0, 0, 4]
    assert rows["instruction"].str.startswith("Walk").all()
    with pytest.raises(UsageError, match="no episode file"):
        vlnbench.load(tmp_path / "run", tmp_path / "nowhere")


def test_several_runs_in_one_table_committed_ones_too() -> None:
    rows = vlnbench.load([RUNS / "houses-r2r-val-unseen-blind", RUNS / "houses-r2r-val-unseen-random"])
    assert rows.groupby("agent")["success"].agg(["mean", "size"]).to_dict("index") == {
        "blind": {"mean": pytest.approx(92 / 900), "size": 900},
        "random": {"mean": pytest.approx(21 / 900), "size": 900},
    }
    with pytest.raises(UsageError, match="at least one run folder"):
        vlnbench.load([])
    with pytest.raises(UsageError, match="not a run folder"):
        vlnbench.load(RUNS)


def test_runs_are_ranked_as_the_command_does() -> None:
    found = vlnbench.rank(results=RUNS.parent, own="blind", metrics=["SPL", "SR"])
    assert set(found["split"]) == {"val_seen", "val_unseen"}
    unseen = found[found["split"] == "val_unseen"].set_index("name")
    assert unseen.loc["blind", ["rank_low", "rank_high", "own"]].tolist() == [4, 5, True]
    assert unseen.loc["streamvln-tiny", ["SR_best", "SPL_best"]].tolist() == [True, True]
    assert unseen.loc["blind", "SR_difference"] == pytest.approx(-64.4444)
    assert pd.isna(unseen.loc["shortest-path", "rank_low"])
    with pytest.raises(UsageError, match="unknown option 'sensor': did you mean 'sensors'"):
        vlnbench.rank(results=RUNS.parent, sensor="RGB")


def test_the_leaderboard_is_a_table(tmp_path: Path) -> None:
    found = vlnbench.leaderboard_rows(tmp_path, split="val_unseen", backbone=["qwen2.5"])
    assert set(found["backbone"]) == {"Qwen2.5-VL-7B-Instruct"}
    assert found["SR"].max() == 60.5


def test_a_matrix_is_a_table() -> None:
    found = vlnbench.matrix_rows(RUNS.parent / "post_training")
    assert found["kind"].value_counts().to_dict() == {"setting": 9, "reference": 3}
    written = pd.read_csv(RUNS.parent / "post_training" / "matrix.csv")
    assert found["val_unseen SR"].tolist() == pytest.approx(written["val_unseen SR"].tolist())
    with pytest.raises(UsageError, match="not there"):
        vlnbench.matrix_rows(RUNS)


def test_two_runs_are_compared_as_the_command_does() -> None:
    """The figures of docs/how-to/leaderboard.md."""
    found = vlnbench.compare(RUNS / "houses-r2r-val-unseen-blind", RUNS / "houses-r2r-val-unseen-streamvln-tiny")
    rate = found.loc["SR (%)"].round(1)
    assert rate[["difference", "se", "low", "high", "n"]].tolist() == [64.4, 2.5, 59.5, 69.3, 900]
    assert rate["b"] - rate["a"] == pytest.approx(64.4, abs=0.11)
    assert (len(found.attrs["wins"]), len(found.attrs["losses"])) == (588, 8)
    assert found.attrs["p_value"] == pytest.approx(2.9e-162, rel=0.05)
    assert found.attrs["identity"]["agent"] == ("blind", "streamvln-tiny")


def test_an_agent_itself_is_evaluated_and_resumed(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "data", "rxr-ce", with_instruction_ids(range(9)))
    options = {**PLANE, "data_root": str(root), "out": tmp_path / "run", "languages": ["en"], "episodes": 4}
    run = vlnbench.evaluate(StopAgent(), **options)
    assert (run.folder, run.summary.n_done, run.summary.identity.agent) == (tmp_path / "run", 4, "StopAgent")
    assert run.summary.identity.choice == "language en"
    assert run.metrics.loc["SR (%)", "mean"] == 0.0
    assert run.metrics.loc["NE (m)", "n"] == 4
    assert "episodes 4 of 9 (language en)" in str(run)
    before = run.rows
    pd.testing.assert_frame_equal(vlnbench.evaluate(StopAgent(), **options).rows, before)


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown option 'episode': did you mean 'episodes'"):
        vlnbench.evaluate("blind", episode=3)
    with pytest.raises(UsageError, match="unknown option 'agent_options'"):
        vlnbench.evaluate("blind", agent_options=None)
    with pytest.raises(UsageError, match="unknown agent 'blnd'"):
        vlnbench.evaluate("blnd")
    made = type("Made", (StopAgent,), {"__module__": "nowhere"})
    with pytest.raises(UsageError, match="Made: its code lies in no file"):
        vlnbench.evaluate(made(), data_root=tmp_path)
    with pytest.raises(AttributeError, match="no attribute 'evaluat'"):
        vlnbench.evaluat  # noqa: B018


def test_nothing_is_loaded_before_it_is_used() -> None:
    code = "import sys, vlnbench; print({'vlnbench.api', 'pandas'} & set(sys.modules), callable(vlnbench.load))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set() True\n"


@pytest.mark.slow
def test_an_agent_by_name_with_its_options(houses: Path, tmp_path: Path) -> None:
    run = vlnbench.evaluate(
        "blind", data_root=houses, allow_partial=True, episodes=2, envs=1, out=tmp_path / "run", where="length>0"
    )
    assert (run.summary.n_done, run.summary.identity.agent) == (2, "blind")
