from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from agents.base import EpisodeAgent
from agents.scripted import GroundTruthReplayAgent, RandomAgent, StopAgent
from tests.fakes import PlaneEnv, make_set
from tests.runs import make_identity
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import Plan, evaluate, make_plan
from vlnbench.evaluation.recorded import load_run
from vlnbench.evaluation.records import (
    ATTEMPTS,
    MANIFEST,
    ROWS,
    SUMMARY,
    TRAJECTORIES,
    Row,
    RunFolder,
    read_rows,
    read_trajectories,
)
from vlnbench.evaluation.summary import format_summary
from vlnbench.interfaces import Action, Agent, Conventions, Episode, Observation
from vlnbench.rollout.agents import load_agent
from vlnbench.rollout.episode import episode_seed
from vlnbench.rollout.inline import Inline

BENCHMARK = get_benchmark("houses-r2r")


def plan(agent: str = "gt-replay", *, count: int | None = None, seed: int = 0, repeats: int = 1) -> Plan:
    return make_plan(BENCHMARK, make_set("episodes"), agent, count=count, seed=seed, repeats=repeats)


def timeless(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_a_run_leaves_manifest_rows_trajectories_and_summary(tmp_path: Path) -> None:
    summary = evaluate(plan(), Inline(GroundTruthReplayAgent(), PlaneEnv()), tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        ATTEMPTS,
        MANIFEST,
        ROWS,
        TRAJECTORIES,
        SUMMARY,
    }
    assert (summary.n_done, summary.n_planned, summary.n_errors, summary.complete) == (9, 9, 0, True)
    success = summary.metrics["SR"]
    assert success is not None
    assert success.mean == 1.0
    rows = read_rows(tmp_path / "run")
    assert len(rows) == 9
    assert len(read_trajectories(tmp_path / "run")) == 9
    manifest = json.loads((tmp_path / "run" / MANIFEST).read_text())
    assert (manifest["identity"]["episodes"], manifest["identity"]["split_size"]) == (9, 9)
    assert manifest["agent_privileged"] is True


def test_running_again_does_nothing_new_and_says_the_same(tmp_path: Path) -> None:
    first = evaluate(plan(), Inline(GroundTruthReplayAgent(), PlaneEnv()), tmp_path)
    env = PlaneEnv()
    again = evaluate(plan(), Inline(GroundTruthReplayAgent(), env), tmp_path)
    assert env.resets == 0
    assert again == first


def test_another_run_in_the_same_folder_is_refused_by_field(tmp_path: Path) -> None:
    evaluate(plan(seed=1), Inline(RandomAgent(), PlaneEnv()), tmp_path)
    before = (tmp_path / ROWS).read_bytes()
    with pytest.raises(UsageError, match=r"holds another run: .*seed 1 \(now 2\)"):
        evaluate(plan(seed=2), Inline(RandomAgent(), PlaneEnv()), tmp_path)
    assert (tmp_path / ROWS).read_bytes() == before


def test_a_folder_with_other_files_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="not empty and not the folder of a run"):
        evaluate(plan(), Inline(StopAgent(), PlaneEnv()), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_interrupted_run_resumes_to_equal_rows(tmp_path: Path) -> None:
    evaluate(plan("random"), Inline(RandomAgent(), PlaneEnv()), tmp_path / "whole")

    def interrupt(row: Row, done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(plan("random"), Inline(RandomAgent(), PlaneEnv()), tmp_path / "cut", interrupt)
    assert len(read_rows(tmp_path / "cut")) == 4
    evaluate(plan("random"), Inline(RandomAgent(), PlaneEnv()), tmp_path / "cut")
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")


@pytest.mark.parametrize("name", [ROWS, TRAJECTORIES])
def test_a_torn_last_line_is_cut_off_and_run_again(tmp_path: Path, name: str) -> None:
    evaluate(plan("random"), Inline(RandomAgent(), PlaneEnv()), tmp_path / "whole")
    evaluate(plan("random"), Inline(RandomAgent(), PlaneEnv()), tmp_path / "torn")
    rows = tmp_path / "torn" / ROWS
    lines = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(b"".join(lines[:5]) + (lines[5][:30] if name == ROWS else b""))
    if name == TRAJECTORIES:
        path = tmp_path / "torn" / TRAJECTORIES
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:5]) + b'{"key":["ho')
    evaluate(plan("random"), Inline(RandomAgent(), PlaneEnv()), tmp_path / "torn")
    assert timeless(tmp_path / "torn") == timeless(tmp_path / "whole")
    assert len(read_trajectories(tmp_path / "torn")) == 9


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    manifest = {"identity": asdict(make_identity())}
    with RunFolder(tmp_path, manifest), pytest.raises(UsageError, match="another process is writing"):
        RunFolder(tmp_path, manifest).__enter__()
    with RunFolder(tmp_path, manifest):
        pass


class BreaksOnFive(EpisodeAgent):
    def begin(self, episode: Episode, seed: int) -> None:
        if episode.episode_id == "5":
            raise RuntimeError("the fifth is too much")

    def act_one(self, observation: Observation) -> Action:
        return Action.STOP


def test_an_exception_in_an_episode_is_a_failed_row_with_its_reason(tmp_path: Path) -> None:
    summary = evaluate(plan("breaks"), Inline(BreaksOnFive(), PlaneEnv()), tmp_path)
    assert (summary.n_done, summary.n_errors) == (9, 1)
    row = next(row for row in read_rows(tmp_path) if row.status == "error")
    assert row.episode_id == "5"
    assert row.reason is not None
    assert row.reason.startswith("RuntimeError: the fifth is too much (test_evaluate.py:")
    success, error = summary.metrics["SR"], summary.metrics["NE"]
    assert success is not None
    assert error is not None
    assert (success.n, error.n) == (9, 8)
    assert "n_errors 1" in format_summary(summary)


class NeedsFile(StopAgent):
    def begin(self, episode: Episode, seed: int) -> None:
        raise UsageError("weights.safetensors: missing")


def test_a_user_error_before_the_first_row_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing"):
        evaluate(plan("needs"), Inline(NeedsFile(), PlaneEnv()), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class WantsSquare(StopAgent):
    expects = Conventions(width=224, height=224, turn_deg=15.0)


def test_an_agent_that_does_not_fit_the_body_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"needs width 224 \(it has 640\), height 224 \(it has 480\);"):
        evaluate(plan("square"), Inline(WantsSquare(), PlaneEnv()), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_subsets_nest_and_do_not_depend_on_the_seed() -> None:
    ids = [{episode.episode_id for episode in plan(count=n, seed=n).episodes} for n in (2, 5, 9)]
    assert ids[0] < ids[1] < ids[2]


@pytest.mark.parametrize("count", [0, 10, -1])
def test_impossible_counts_name_the_split_size(count: int) -> None:
    with pytest.raises(UsageError, match="val_unseen has 1 to 9 episodes"):
        plan(count=count)


def test_a_split_without_public_goals_is_run_and_not_scored(tmp_path: Path) -> None:
    bare = make_set("test.json.gz")
    bare = replace(bare, episodes=tuple(replace(episode, goals=()) for episode in bare.episodes))
    secret = make_plan(BENCHMARK, bare, "breaks", count=None, seed=0, repeats=1)
    summary = evaluate(secret, Inline(BreaksOnFive(), PlaneEnv()), tmp_path)
    assert (summary.n_done, summary.n_unscored, summary.n_errors) == (9, 8, 1)
    assert set(summary.metrics.values()) == {None}
    assert "n_unscored 8: no public goals" in format_summary(summary)
    assert len(read_trajectories(tmp_path)) == 8
    assert {row.status for row in read_rows(tmp_path)} == {"unscored", "error"}


def test_rows_do_not_depend_on_which_other_episodes_run(tmp_path: Path) -> None:
    evaluate(plan("random"), Inline(RandomAgent(), PlaneEnv()), tmp_path / "all")
    evaluate(plan("random", count=3), Inline(RandomAgent(), PlaneEnv()), tmp_path / "three")
    everything = timeless(tmp_path / "all")
    for row in timeless(tmp_path / "three"):
        assert row in everything


def test_repeats_have_seeds_of_their_own(tmp_path: Path) -> None:
    summary = evaluate(plan("random", repeats=3), Inline(RandomAgent(), PlaneEnv()), tmp_path)
    rows = read_rows(tmp_path)
    assert (summary.n_planned, len(rows), len({row.seed for row in rows})) == (27, 27, 27)
    assert episode_seed(0, "1", 0) == episode_seed(0, "1", 0) != episode_seed(1, "1", 0)


def test_a_partial_summary_says_so(tmp_path: Path) -> None:
    from vlnbench.evaluation.summary import summarize

    evaluate(plan(), Inline(GroundTruthReplayAgent(), PlaneEnv()), tmp_path)
    keys = [key for key, _, _ in plan().units()]
    identity = load_run(tmp_path).identity
    partial = summarize(read_rows(tmp_path)[:4], keys, identity)
    assert not partial.complete
    assert "PARTIAL: 4 of 9 planned episodes done" in format_summary(partial)
    twice = summarize(read_rows(tmp_path) * 2, keys, identity)
    assert (twice.n_done, twice.complete) == (9, True)


def test_the_summary_has_intervals_by_scene_and_by_trajectory(tmp_path: Path) -> None:
    summary = evaluate(plan("random", repeats=2), Inline(RandomAgent(), PlaneEnv()), tmp_path)
    for by_scene, by_trajectory in zip(summary.metrics.values(), summary.by_trajectory.values(), strict=True):
        assert by_scene is not None
        assert by_trajectory is not None
        assert (by_scene.mean, by_scene.n) == (by_trajectory.mean, by_trajectory.n)
        assert (by_scene.clusters, by_trajectory.clusters) == (3, 9)
    written = json.loads((tmp_path / "summary.json").read_text())["by_trajectory"]["NE"]
    assert set(written) == {"mean", "n", "clusters", "se", "low", "high", "degrees"}


def test_broken_rows_are_named_by_line(tmp_path: Path) -> None:
    evaluate(plan(), Inline(GroundTruthReplayAgent(), PlaneEnv()), tmp_path)
    with (tmp_path / ROWS).open("a") as file:
        file.write("not json\n")
    with pytest.raises(UsageError, match=r"episodes.jsonl: line 10: broken JSON"):
        read_rows(tmp_path)


def test_the_agent_gets_only_what_it_declared(tmp_path: Path) -> None:
    seen: list[Observation] = []
    episodes: list[Episode] = []

    class Curious(EpisodeAgent):
        def begin(self, episode: Episode, seed: int) -> None:
            episodes.append(episode)

        def act_one(self, observation: Observation) -> Action:
            seen.append(observation)
            return Action.STOP

    evaluate(plan("curious", count=1), Inline(Curious(), PlaneEnv()), tmp_path)
    assert (seen[0].pose, seen[0].rgb, seen[0].depth, seen[0].oracle_action) == (None, None, None, None)
    assert episodes[0].goals == ()
    assert episodes[0].ground_truth is None


def test_an_episode_ends_at_the_step_budget(tmp_path: Path) -> None:
    class Dancer(EpisodeAgent):
        def act_one(self, observation: Observation) -> Action:
            return Action.TURN_LEFT

    evaluate(plan("dancer", count=1), Inline(Dancer(), PlaneEnv()), tmp_path)
    row = read_rows(tmp_path)[0]
    assert (row.scores["steps"], row.scores["stopped"], row.scores["success"]) == (500, False, 0.0)


def test_an_edited_agent_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "edited_agent.py"

    def edited(comment: str) -> Agent:
        module.write_text(
            f"from agents.scripted import StopAgent\n\nclass Mine(StopAgent):  # {comment}\n    pass\n"
        )
        sys.modules.pop("edited_agent", None)
        return load_agent("edited_agent:Mine")

    evaluate(plan("edited_agent:Mine"), Inline(edited("first"), PlaneEnv()), tmp_path / "run")
    with pytest.raises(UsageError, match=r"holds another run: agent_code"):
        evaluate(plan("edited_agent:Mine"), Inline(edited("second"), PlaneEnv()), tmp_path / "run")
