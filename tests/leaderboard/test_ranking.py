from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.scripted import GroundTruthReplayAgent, RandomAgent, StopAgent
from tests.evaluation.test_evaluate import plan
from tests.fakes import PlaneEnv
from tests.leaderboard.test_compare_by_hand import line, write
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import evaluate
from vlnbench.evaluation.records import MANIFEST, ROWS
from vlnbench.leaderboard.ranking import rank, rank_sheet
from vlnbench.rollout.inline import Inline
from vlnbench.util.tables.sheet import data


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    agents = {"random": RandomAgent(), "gt-replay": GroundTruthReplayAgent(), "stop": StopAgent()}
    for name, agent in agents.items():
        evaluate(plan(name), Inline(agent, PlaneEnv()), tmp_path / name)
    return [tmp_path / name for name in agents]


def test_runs_are_ranked_by_success(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert rank(runs)[0][0].run.identity.agent == "gt-replay"
    assert main(["rank", *map(str, runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("houses-r2r val_unseen, episodes 9 of 9, plane-1; mean ± SE [95 % interval]")
    assert (
        " ".join(lines[2].split())
        == "rank run SR (%) SPL (%) OS (%) NE (m) nDTW (%) SDTW (%) SR - random p (Holm)"
    )
    assert lines[4].split()[:4] == ["gt-replay", "(privileged)", "100.0", "±"]


@pytest.mark.parametrize(
    "field",
    ["benchmark", "split", "dataset_version", "simulator"],
)
def test_unlike_runs_are_refused_with_the_differing_field(runs: list[Path], field: str) -> None:
    path = runs[1] / MANIFEST
    manifest = json.loads(path.read_text())
    value = "r2r-ce" if field == "benchmark" else "another"
    manifest["identity"][field] = value
    path.write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match=rf"cannot share a table: {field} '.*' / '{value}'"):
        rank(runs)


def test_an_unfinished_run_is_refused(runs: list[Path]) -> None:
    rows = (runs[0] / ROWS).read_bytes().splitlines(keepends=True)
    (runs[0] / ROWS).write_bytes(b"".join(rows[:4]))
    with pytest.raises(UsageError, match="4 of 9 planned episodes are done"):
        rank(runs)


def test_ranking_one_run_is_its_table(runs: list[Path]) -> None:
    assert data(rank_sheet(rank(runs[2:])[0]))["name"] == ["stop"]


def change(run: Path, **fields: object) -> None:
    path = run / MANIFEST
    manifest = json.loads(path.read_text())
    identity = {name: value for name, value in fields.items() if name in manifest["identity"]}
    manifest["identity"] |= identity
    manifest |= {name: value for name, value in fields.items() if name not in identity}
    path.write_text(json.dumps(manifest))


def test_other_protocols_are_named_by_field_and_other_files_in_words(runs: list[Path]) -> None:
    protocol = json.loads((runs[1] / MANIFEST).read_text())["protocol"]
    other = {**protocol, "max_steps": 400, "summary": "x", "body": {**protocol["body"], "turn_deg": 30.0}}
    change(runs[1], fingerprint="0" * 12, dataset_sha256="0", episodes_sha256="0", protocol=other)
    with pytest.raises(UsageError) as caught:
        rank(runs)
    assert str(caught.value).partition("cannot share a table: ")[2] == (
        "fingerprint of the protocol: body.turn_deg 15.0 / 30.0, max_steps 500 / 400; "
        "dataset_sha256: the files of houses-r2r val_unseen are not the same; "
        "episodes_sha256: 9 of 9 in both, but not the same ones "
        "(`vlnbench compare --common` takes those that both have)"
    )


def twenty(folder: Path, solved: int, meters: float) -> Path:
    """Twenty scenes of one episode, of which the first ones are solved."""
    rows = [{**line(0, float(i < solved), meters), "episode_id": str(i), "scene_id": f"s{i}"} for i in range(20)]
    return write(folder, rows, episodes=20, split_size=20)


def test_rank_sets_by_hand(tmp_path: Path) -> None:
    """12, 10 and 0 of 20. se of a share m of 20 scenes: sqrt(m (1 - m) / 19). a - b: 0.1, t 1.453; a - c: 0.6, t
    5.339; b - c: 0.5, t 4.359; with 19 degrees p is 0.1626, 3.75e-5 and 3.36e-4, by Holm times 1, 3 and 2."""
    folders = [twenty(tmp_path / name, solved, 1.0) for name, solved in (("c", 0), ("b", 10), ("a", 12))]
    (ranked,) = rank(folders)
    assert [each.run.folder.name for each in ranked] == ["a", "b", "c"]
    assert [each.beside["SR"].rank for each in ranked] == [(1, 2), (1, 2), (3, 3)]
    assert [each.beside["SR"].p for each in ranked[1:]] == [
        pytest.approx(0.1626, rel=1e-3),
        pytest.approx(3 * 3.75e-5, rel=1e-2),
    ]
    assert {each.beside["NE"].rank for each in ranked} == {(1, 3)}  # all equal
    found = data(rank_sheet(ranked))
    assert found["SR_best"] == [True, True, False]
    assert found["SR_difference"] == [None, -10.0, -60.0]
    assert (found["rank_low"], found["rank_high"]) == ([1, 1, 3], [2, 2, 3])


def test_what_is_less_is_better_of_meters(tmp_path: Path) -> None:
    near, far = twenty(tmp_path / "near", 9, 1.0), twenty(tmp_path / "far", 10, 1.0)
    lines = [json.loads(text) for text in (far / ROWS).read_text().splitlines()]
    for i, each in enumerate(lines):
        each["scores"]["distance_to_goal"] = 5.0 + i % 2
    (far / ROWS).write_text("".join(json.dumps(each) + "\n" for each in lines))
    (ranked,) = rank([near, far])
    assert [(each.run.folder.name, each.beside["NE"].rank) for each in ranked] == [
        ("far", (2, 2)),
        ("near", (1, 1)),
    ]


def test_filters_own_rows_and_names_below_a_folder_of_results(runs: list[Path], tmp_path: Path, capsys) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "runs").symlink_to(tmp_path)
    (runs[0] / "entry.json").write_text(
        json.dumps({"name": "mine", "sensors": "RGB", "backbone": "Qwen2.5-VL-7B"})
    )
    change(runs[2], split="val_seen")
    command = ["rank", "--results", str(tmp_path / "results"), "--format", "json"]

    def names(*more: str) -> list[list[str]]:
        assert main([*command, *more]) == 0
        return [[row["name"] for row in each["rows"]] for each in json.loads(capsys.readouterr().out)]

    assert names() == [["gt-replay", "mine"], ["stop"]]
    assert names("--split", "val_seen") == [["stop"]]
    assert names("--sensors", "rgb", "rgb-d") == names("--backbone", "qwen") == [["mine"]]
    assert names("--before", "2100-01", "--since", "2026") == [["gt-replay", "mine"], ["stop"]]
    assert names("random") == [["mine"]]
    assert main([*command, "--own", "mine", "--metrics", "ne", "sr"]) == 0
    rows = json.loads(capsys.readouterr().out)[0]["rows"]
    assert [row["own"] for row in rows] == [False, True]
    assert [name for name in rows[0] if name.isupper()] == ["NE", "SR"]
    for wrong, said in (("--since=soon", "--since: expected a date"), ("--metrics=TER", "unknown metric 'TER'")):
        assert main([*command, wrong]) == 2
        assert said in capsys.readouterr().err
    assert main([*command, "--since", "2100"]) == 2
    assert "no run is left" in capsys.readouterr().err
