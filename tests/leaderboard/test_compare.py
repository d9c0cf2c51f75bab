from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agents.scripted import GroundTruthReplayAgent, RandomAgent, StopAgent
from tests.evaluation.test_evaluate import BENCHMARK, plan
from tests.fakes import PlaneEnv, make_set
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.evaluation.choice.choice import Choice
from vlnbench.evaluation.evaluate import evaluate, make_plan
from vlnbench.evaluation.records import ATTEMPTS, MANIFEST, ROWS, read_rows
from vlnbench.evaluation.stats import bootstrap, estimate
from vlnbench.leaderboard.compare import compare, format_comparison
from vlnbench.rollout.inline import Inline


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    agents = {"random": RandomAgent(), "gt-replay": GroundTruthReplayAgent(), "stop": StopAgent()}
    for name, agent in agents.items():
        evaluate(plan(name), Inline(agent, PlaneEnv()), tmp_path / name)
    return {name: tmp_path / name for name in agents}


def rewrite(folder: Path, successes: list[float]) -> None:
    rows = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
    for row, success in zip(rows, successes, strict=True):
        row["scores"]["success"] = success
    (folder / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))


def keep(folder: Path, count: int) -> None:
    rows = (folder / ROWS).read_bytes().splitlines(keepends=True)
    (folder / ROWS).write_bytes(b"".join(rows[:count]))


def test_differences_are_paired_by_episode(runs: dict[str, Path]) -> None:
    rewrite(runs["random"], [1, 0, 0, 1, 1, 0, 0, 0, 0])
    rewrite(runs["stop"], [1, 1, 1, 0, 1, 1, 0, 1, 0])
    result = compare(runs["random"], runs["stop"])
    rows = read_rows(runs["random"])
    assert result.wins == sorted(rows[i].episode_id for i in (1, 2, 5, 7))
    assert result.losses == [rows[3].episode_id]
    assert (result.both, result.neither) == (2, 2)
    assert result.p_value == pytest.approx(2 * 6 / 32)
    gains = dict(zip((row.key for row in rows), [0.0, 1.0, 1.0, -1.0, 0.0, 1.0, 0.0, 1.0, 0.0], strict=True))
    rows = sorted(rows, key=lambda row: row.key)
    scenes, differences = [row.scene_id for row in rows], [gains[row.key] for row in rows]
    found = result.differences["SR"]
    assert found is not None
    assert found.by_scene == estimate(differences, scenes, "difference")
    assert found.bootstrap == bootstrap(differences, scenes)
    trajectories = [(row.scene_id, row.trajectory_id) for row in rows]
    assert found.by_trajectory == estimate(differences, trajectories, "difference")
    assert (found.a.mean, found.b.mean) == (3 / 9, 6 / 9)


def test_failed_episodes_are_counted_and_what_they_move_is_said(runs: dict[str, Path]) -> None:
    rewrite(runs["random"], [1, 1, 1, 1, 0, 0, 0, 0, 0])
    rewrite(runs["stop"], [1, 1, 1, 1, 0, 0, 0, 0, 0])
    assert "failed episodes" not in format_comparison(compare(runs["random"], runs["stop"]))
    rows = [json.loads(line) for line in (runs["stop"] / ROWS).read_text().splitlines()]
    for row in rows[:2]:
        row |= {"status": "error", "reason": "x", "scores": {}}
    (runs["stop"] / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = compare(runs["random"], runs["stop"])
    difference = found.differences["SR"]
    assert difference is not None
    assert found.ran is not None
    assert (found.errors, difference.by_scene.n, found.ran.by_scene.n) == ((0, 2), 9, 7)
    assert (difference.by_scene.mean, found.ran.by_scene.mean) == (pytest.approx(-2 / 9), 0.0)
    line = next(line for line in format_comparison(found).splitlines() if line.startswith("failed"))
    assert line.startswith(
        "failed episodes, which count as without success: A 0, B 2; where both ran, SR (%) of B"
    )
    assert line.endswith("(n 7)")


def test_the_order_of_the_runs_is_the_sign(runs: dict[str, Path]) -> None:
    there, back = compare(runs["stop"], runs["gt-replay"]), compare(runs["gt-replay"], runs["stop"])
    assert (there.wins, there.losses) == (back.losses, back.wins)
    assert there.p_value == back.p_value
    for label, value in there.differences.items():
        other = back.differences[label]
        assert value is not None
        assert other is not None
        assert value.by_scene.mean == pytest.approx(-other.by_scene.mean)


def test_the_order_in_which_episodes_finished_does_not_matter(runs: dict[str, Path]) -> None:
    """Drawn scenes are the same ones too, so that the bootstrap's interval is."""
    before = format_comparison(compare(runs["random"], runs["stop"]))
    rows = runs["stop"] / ROWS
    rows.write_text("".join(line + "\n" for line in reversed(rows.read_text().splitlines())))
    assert format_comparison(compare(runs["random"], runs["stop"])) == before


def test_a_run_does_not_differ_from_itself(runs: dict[str, Path]) -> None:
    result = compare(runs["random"], runs["random"])
    assert (result.identity, result.wins, result.losses, result.p_value) == ({}, [], [], 1.0)
    assert "they differ in nothing" in format_comparison(result)


def test_an_episode_counts_where_both_runs_have_the_metric(runs: dict[str, Path]) -> None:
    rows = [json.loads(line) for line in (runs["stop"] / ROWS).read_text().splitlines()]
    rows[0] |= {"status": "error", "reason": "broken", "scores": {}}
    (runs["stop"] / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = compare(runs["random"], runs["stop"])
    success, distance = result.differences["SR"], result.differences["NE"]
    assert success is not None
    assert distance is not None
    assert (success.by_scene.n, distance.by_scene.n) == (9, 8)


def test_the_command_prints_everything(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", str(runs["stop"]), str(runs["gt-replay"])]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    for part in ("paired by episode", "McNemar's exact p = 0.0039", "only B succeeds (9): "):
        assert part in text
    assert "they differ in agent\n" in text
    shown = text.replace(str(runs["stop"].parent), "")  # wherever the runs lie
    told = [line for line in shown.splitlines() if not line.startswith("hours of ")]  # ends with the name of a CPU
    assert max(map(len, told)) <= 120
    assert main([*arguments, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differences"]["SR"]["by_scene"]["n"] == 9
    assert len(found["success"]["wins"]) == 9


@pytest.mark.parametrize("field", ["split", "dataset_version", "simulator"])
def test_unlike_runs_are_refused_with_the_differing_field(runs: dict[str, Path], field: str) -> None:
    path = runs["stop"] / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["identity"][field] = "another"
    path.write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match=rf"cannot share a table: {field} '.*' / 'another'$"):
        compare(runs["random"], runs["stop"])


def test_an_unfinished_run_is_refused_where_whole_ones_are_asked_for(runs: dict[str, Path]) -> None:
    keep(runs["stop"], 4)
    with pytest.raises(UsageError, match="4 of 9 planned episodes are done"):
        compare(runs["random"], runs["stop"])


def test_repeats_are_pairs_of_their_own(tmp_path: Path) -> None:
    for name, agent in (("stop", StopAgent()), ("gt", GroundTruthReplayAgent())):
        evaluate(plan(name, repeats=2), Inline(agent, PlaneEnv()), tmp_path / name)
    wins = compare(tmp_path / "stop", tmp_path / "gt").wins
    assert len(wins) == 18
    assert wins[0].endswith(("#0", "#1"))


def test_time_per_step_and_hours_stand_beside_each_other(runs: dict[str, Path]) -> None:
    seconds = {"random": {"agent 1-10": 0.02, "wall": 1800.0}, "gt-replay": {"agent 1-10": 0.04, "wall": 3600.0}}
    for name, told in seconds.items():
        rows = [json.loads(line) for line in (runs[name] / ROWS).read_text().splitlines()]
        lines = [{**row, "scores": {**row["scores"], "steps": 10}, "seconds": told} for row in rows]
        (runs[name] / ROWS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (runs["gt-replay"] / ATTEMPTS).unlink()
    found = compare(runs["random"], runs["gt-replay"])
    text = format_comparison(found)
    assert re.search(r"1-10 +2 +90 +#{12} +4 +90 +#{24}\n", text)
    assert re.search(r"hours of A: \d+ CPU-h, wall 4.5; \d+ cores", text)
    assert "hours of B: wall 9; hardware unknown" in text
    written = json.loads(json.dumps(found.to_json()))
    assert written["hours"][1] == {**dict.fromkeys(written["hours"][1]), "wall": 9.0}
    assert written["agent_ms_by_step"][0][0]["ms"] == pytest.approx(2.0)


def test_rows_of_older_versions_show_no_time_per_step(runs: dict[str, Path]) -> None:
    for name in ("random", "stop"):
        rows = [json.loads(line) for line in (runs[name] / ROWS).read_text().splitlines()]
        lines = [{**row, "seconds": {"env": 1.0, "agent": 2.0}} for row in rows]
        (runs[name] / ROWS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = format_comparison(compare(runs["random"], runs["stop"]))
    assert "ms per step" not in text
    assert "wall" not in text


def test_of_runs_of_other_episodes_those_that_both_have(
    tmp_path: Path, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    some = tmp_path / "some"
    evaluate(plan("some", count=5), Inline(StopAgent(), PlaneEnv()), some)
    ids = {row.episode_id: row for row in read_rows(runs["gt-replay"])}
    there = [row.episode_id for row in read_rows(some)]
    rewrite(some, [1, 0, 0, 0, 1])
    with pytest.raises(UsageError, match=r"5 of 9 \(`vlnbench compare --common` takes those that both have\)"):
        compare(runs["gt-replay"], some)
    found = compare(runs["gt-replay"], some, common=True)
    assert (found.both, found.losses, found.wins) == (2, sorted(there[1:4]), [])
    success = found.differences["SR"]
    assert success is not None
    assert (success.a.mean, success.b.mean, success.by_scene.n) == (1.0, 0.4, 5)
    assert success.by_scene == estimate(
        [-1.0 if i in (1, 2, 3) else 0.0 for i in range(5)], [ids[each].scene_id for each in there], "difference"
    )
    assert main(["compare", str(runs["gt-replay"]), str(some), "--common"]) == 0
    printed = capsys.readouterr().out
    assert "episodes that both have: 5 (A: 9 of 9, B: 5 of 9)" in printed
    assert "hours of" not in printed, "they are of other episodes"
    assert main(["compare", str(runs["gt-replay"]), str(some), "--common", "--format", "json"]) == 0
    shared = json.loads(capsys.readouterr().out)["shared"]
    assert "episodes_sha256" not in shared
    assert shared["benchmark"]


def test_runs_without_a_common_episode_are_refused(tmp_path: Path) -> None:
    for name, ids in (("a", ("0", "1")), ("b", ("2", "3"))):
        choice = Choice(episode_ids=ids)
        chosen = make_plan(BENCHMARK, make_set("episodes"), name, count=None, seed=0, repeats=1, choice=choice)
        evaluate(chosen, Inline(StopAgent(), PlaneEnv()), tmp_path / name)
    with pytest.raises(UsageError, match="have no episode in common"):
        compare(tmp_path / "a", tmp_path / "b", common=True)
