from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.importing import foreign
from tests.importing.foreign import TOTALS, by_scene, outcomes
from tests.importing.test_formats import imported
from vlnbench.cli import main
from vlnbench.evaluation.recorded import load_run, remake_plan
from vlnbench.evaluation.records import ROWS

Change = Callable[[list[dict[str, Any]]], object]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return foreign.data(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def changed(tmp_path: Path, change: Change, totals: object = TOTALS) -> Path:
    """Lines of StreamVLN, one of them changed."""
    found = [by_scene(name, one) for name, one in outcomes().items()]
    change(found)
    lines = [json.dumps(line) for line in [*found, *([totals] if totals else [])]]
    return foreign.write(tmp_path / "val_unseen" / "result.json", "\n".join(lines))


def said(tmp_path: Path, root: Path, change: Change, capsys: pytest.CaptureFixture[str]) -> str:
    """The line with which an import ends that writes nothing."""
    path = changed(tmp_path, change)
    assert main(["import", str(path), "--format=streamvln", f"--data-root={root}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert not (tmp_path / "runs").exists()
    return line


BROKEN: dict[str, tuple[Change, str]] = {
    "percent": (lambda x: x[2].update(success=100.0), "line 3: field 'success': expected 0 or 1, found 100.0"),
    "range": (lambda x: x[2].update(spl=1.5), "line 3: field 'spl': expected a number from 0 to 1, found 1.5"),
    "below": (lambda x: x[2].update(ne=-1), "line 3: field 'ne': expected a number from 0, found -1"),
    "text": (lambda x: x[2].update(ne="near"), "line 3: field 'ne': expected a number from 0, found near"),
    "NaN": (lambda x: x[2].update(success=float("nan")), "line 3: field 'success': expected 0 or 1, found nan"),
    "steps": (
        lambda x: x[2].update(steps=float("inf")),
        "line 3: field 'steps': expected a number from 0, found inf",
    ),
    "gone": (lambda x: x[5].pop("ne"), "line 6: field 'ne': missing"),
    "id": (
        lambda x: x[2].update(episode_id=[2]),
        "line 3: field 'episode_id': expected an episode id, found list",
    ),
    "strange": (lambda x: x[2].update(episode_id="99"), "1 of 9 episodes, 99 first, are not in r2r-ce val_unseen"),
    "scene": (
        lambda x: x[2].update(scene_id="a"),
        "is a, but episode 2 of r2r-ce val_unseen is in c; another --split",
    ),
    "twice": (
        lambda x: x.append({**x[2], "spl": 0.25}),
        "line 10: episode 2 stands twice with other values, first at",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_is_refused_in_one_line(
    name: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, expected = BROKEN[name]
    assert expected in said(tmp_path, root, change, capsys)


def test_a_broken_file_and_no_split(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path, lambda found: None)
    path.write_text(path.read_text()[:300])
    assert main(["import", str(path), "--format=streamvln"]) == 2
    assert f"{path}: not a readable (gzipped) JSON file" in capsys.readouterr().err
    other = foreign.write(tmp_path / "theirs" / "result.json", json.dumps(by_scene("0", outcomes()["0"])))
    assert main(["import", str(other), "--format=streamvln"]) == 2
    assert "theirs/result.json: does not tell its split; say it with --split" in capsys.readouterr().err
    assert main(["import", str(other), "--format=streamvln", "--split=val"]) == 2
    assert "unknown split of r2r-ce 'val'" in capsys.readouterr().err


def test_a_split_that_names_of_files_contradict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign.navila(tmp_path / "theirs", outcomes())
    assert main(["import", str(tmp_path / "theirs"), "--split=val_seen"]) == 2
    said = capsys.readouterr().err
    assert "val_unseen_2-0.json: is of val_unseen by its name; --split val_seen contradicts it" in said


def test_equal_results_of_an_episode_count_once(root: Path, tmp_path: Path) -> None:
    done = imported(changed(tmp_path, lambda found: found.append(found[2])), root, format="streamvln")
    assert done.summary.n_done == 9
    assert "1 results stand there twice, with the same values: they count once" in done.remarks


def test_undefined_values_are_counted_and_left_out(root: Path, tmp_path: Path) -> None:
    """As StreamVLN writes them where no path leads to the goal."""
    nothing = {"spl": float("nan"), "ne": float("inf")}
    path = changed(tmp_path, lambda found: found[8].update(nothing), {**TOTALS, "spls_all": float("nan")})
    done = imported(path, root, format="streamvln")
    spl, away = done.summary.metrics["SPL"], done.summary.metrics["NE"]
    assert spl is not None
    assert away is not None
    assert [spl.mean, spl.n, away.mean, away.n] == pytest.approx([2 / 9, 9, 28 / 8, 8])
    assert (done.summary.n_unreachable, done.summary.failures["unreachable"]) == (1, 1)
    assert "spl is NaN or infinite in 1 episodes: it counts as 0, the goal as out of reach" in done.remarks
    assert "distance_to_goal is NaN or infinite in 1 episodes: left out of the mean" in done.remarks
    assert any("spls_all is nan; without the undefined values it is 0.2222" in remark for remark in done.remarks)


def test_means_of_the_file_are_held_against_its_episodes(root: Path, tmp_path: Path) -> None:
    path = changed(tmp_path, lambda found: None, {**TOTALS, "sucs_all": 0.5, "length": 12})
    differing = [each for each in imported(path, root, format="streamvln").remarks if "DIFFERS" in each]
    assert differing == [
        f"DIFFERS: {path}: line 10: sucs_all is 0.5, but its episodes give 0.444444",
        f"DIFFERS: {path}: line 10: length is 12, but its episodes give 9",
    ]


def test_scores_that_contradict_each_other(root: Path, tmp_path: Path) -> None:
    found = outcomes()
    found["0"] |= {"distance_to_goal": 3.0}
    found["1"] |= {"oracle_success": 0.0}
    found["2"] |= {"spl": 0.9}  # it walked twice the shortest path
    found["8"] |= {"spl": 0.1}
    foreign.navila(tmp_path / "theirs", found)
    differing = [each for each in imported(tmp_path / "theirs", root).remarks if "DIFFERS" in each]
    assert differing == [
        "DIFFERS: success 3 m or more from the goal in 1 episodes, 0 first",
        "DIFFERS: success without oracle success in 1 episodes, 1 first",
        "DIFFERS: SPL more than 0.02 from the one of path length and the dataset's shortest path in 1 episodes, "
        "2 first",
        "DIFFERS: SPL without success in 1 episodes, 8 first",
    ]


def test_missing_shards_and_episodes_are_named(root: Path, tmp_path: Path) -> None:
    foreign.navila(tmp_path / "theirs", outcomes())
    (tmp_path / "theirs" / "val_unseen_2-1.json").unlink()
    done = imported(tmp_path / "theirs", root)
    assert "MISSING: shards 1" in done.remarks
    assert "MISSING: 4 of 9 episodes of the split, 5 first" in done.remarks
    assert done.summary.identity.episodes_of == "5 of 9 (5 chosen by id)"
    plan = remake_plan(load_run(done.folder), root)
    assert [episode.episode_id for episode in plan.episodes] == list("01234")


def test_without_the_split_nothing_is_made_up(tmp_path: Path) -> None:
    foreign.streamvln(tmp_path / "scenes", outcomes())
    known = imported(tmp_path / "scenes", tmp_path, format="streamvln")
    rate = known.summary.metrics["SR"]
    assert rate is not None
    assert (rate.clusters, rate.se is not None) == (3, True)  # the file names scenes
    assert known.summary.identity.episodes_of == "9 of 1839"
    assert "that the split is val_unseen is told by the name of a folder alone" in known.remarks
    foreign.navila(tmp_path / "none", outcomes())
    done = imported(tmp_path / "none", tmp_path)
    rate = done.summary.metrics["SR"]
    assert rate is not None
    assert rate.mean == pytest.approx(4 / 9)
    assert rate.se is None
    assert "one scene, or scenes are not known: no SE or interval" in str(done)
    assert "dataset_sha256" in done.summary.identity.not_known
    assert "episodes were not held against the split, which was not at hand" in done.remarks


def test_the_same_again_changes_nothing_and_another_is_refused(root: Path, tmp_path: Path) -> None:
    path = changed(tmp_path, lambda found: None)
    done = imported(path, root, format="streamvln")
    before = (done.folder / ROWS).read_bytes()
    assert imported(path, root, format="streamvln").folder == done.folder
    (done.folder / ROWS).write_bytes(before[:99])  # killed before it was done
    imported(path, root, format="streamvln")
    assert (done.folder / ROWS).read_bytes() == before
    changed(tmp_path, lambda found: found[0].update(steps=99))
    arguments = ["import", str(path), "--format=streamvln", f"--data-root={root}", f"--out={done.folder}"]
    assert main(arguments) == 2
    assert (done.folder / ROWS).read_bytes() == before
