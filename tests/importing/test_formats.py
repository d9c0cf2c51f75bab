from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.importing import foreign
from tests.importing.foreign import WRITERS, outcomes
from vlnbench.cli import main
from vlnbench.evaluation.identity import UNKNOWN
from vlnbench.evaluation.recorded import load_run, load_table
from vlnbench.importing.formats import ResultFormat, every_format, get_format
from vlnbench.importing.layouts import lines
from vlnbench.importing.options import ImportOptions
from vlnbench.importing.results import Written, import_results

MINE = ResultFormat(
    name="mine",
    source="a program of mine",
    benchmark="r2r-ce",
    files=r"mine\.json",
    layout=lines,
    scores={"won": "success", "efficiency": "spl", "away": "distance_to_goal"},
    episode="number",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return foreign.data(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(folder: Path, root: Path, **options: object) -> Written:
    found, means = import_results([folder], ImportOptions(data_root=root, **options))  # type: ignore[arg-type]
    assert not means
    (one,) = found
    return one


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_means_computed_by_hand(name: str, root: Path, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / "theirs", outcomes())
    done = imported(tmp_path / "theirs", root, format=name)
    found = {label: value and value.mean for label, value in done.summary.metrics.items()}
    expected = {"SR": 4 / 9, "SPL": 2 / 9, "OS": 6 / 9, "NE": 34 / 9}
    has_dtw, has_steps, has_length = (
        name in "navila vlnce internnav",
        name != "uninavid",
        name in "navila vlnce uninavid",
    )
    expected |= {"nDTW": 0.25, "SDTW": 1 / 9} if has_dtw else {}
    expected |= {"steps": 14.0} if has_steps else {}
    expected |= {"path length": 12.0} if has_length else {}
    assert {label: value for label, value in found.items() if value is not None} == pytest.approx(expected)
    ended = {kind: count for kind, count in done.summary.failures.items() if count}
    assert ended == {"success": 4, "passed_goal": 2, "unknown": 3}
    assert done.summary.n_unreachable == 0
    assert not [
        remark for remark in done.remarks if remark.isupper() or "DIFFERS" in remark or "MISSING" in remark
    ]
    run = load_run(done.folder)
    identity = run.identity
    assert (identity.imported, identity.split) == (name, "val_unseen")
    assert identity.agent.endswith(" (imported)")
    assert (identity.fingerprint, identity.simulator, identity.dataset_version) == (UNKNOWN,) * 3
    scenes = {row.episode_id: (row.scene_id, row.trajectory_id) for row in run.rows.values()}
    assert scenes["4"] == ("b/b.glb", "1")
    assert load_table(done.folder).manifest["imported"]["format"] == name


def test_a_stated_benchmark_is_the_protocol(root: Path, tmp_path: Path) -> None:
    WRITERS["navila"](tmp_path / "theirs", outcomes())
    run = load_table(imported(tmp_path / "theirs", root, benchmark="r2r-navila").folder)
    assert run.identity.fingerprint == run.benchmark.fingerprint
    assert run.identity.not_known == ("dataset_version", "simulator")


@pytest.mark.parametrize("name", ["navila", "uninavid", "vlnce", "internnav"])
def test_a_format_that_only_one_program_writes_is_told(name: str, root: Path, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / "theirs", outcomes())
    assert imported(tmp_path / "theirs", root).summary.identity.imported == name


WRONG = {
    ("streamvln", "navila"): "looks like --format streamvln or janusvln",
    ("navila", "streamvln"): "looks like --format navila",
    ("uninavid", "vlnce"): "looks like --format uninavid",
    ("vlnce", "internnav"): "looks like --format vlnce",
    ("streamvln", "internnav"): "looks like --format streamvln or janusvln",
    ("internnav", "uninavid"): "looks like --format internnav",
    ("streamvln", ""): "may be of the formats streamvln, janusvln; say which with --format",
}


@pytest.mark.parametrize(("written", "said"), WRONG)
def test_a_wrong_guess_is_one_line(
    written: str, said: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    WRITERS[written](tmp_path / "theirs", outcomes())
    arguments = [
        "import",
        str(tmp_path / "theirs"),
        f"--data-root={root}",
        *([f"--format={said}"] if said else []),
    ]
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert WRONG[written, said] in line
    assert not (tmp_path / "runs").exists()


def test_files_that_are_nothing_of_the_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign.write(tmp_path / "a" / "notes.json", '{"weather": "rain"}')
    for arguments in (["a"], ["a", "--format=navila"], ["a", "--format=evalai"], ["b"], []):
        assert main(["import", *arguments]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "begins with an object of weather: of no known --format" in said[0]
    assert "a/notes.json: begins with an object of weather: not of format navila" in said[1]
    assert "not of format evalai" in said[2]
    assert said[3:] == [
        "vlnbench: error: b: there is no such file or folder",
        "vlnbench: error: import: expected files of results, or folders that hold them",
    ]
    assert main(["import", "a", "--format=navilla"]) == 2
    assert "did you mean 'navila'?" in capsys.readouterr().err


def test_checkpoints_of_a_folder_are_runs_of_their_own(root: Path, tmp_path: Path) -> None:
    foreign.vlnce(tmp_path / "theirs", outcomes(), "7")
    foreign.vlnce(tmp_path / "theirs", outcomes({8}), "8")
    found, _ = import_results([tmp_path / "theirs"], ImportOptions(data_root=root, name="CMA"))
    agents = [each.summary.identity.agent for each in found]
    assert agents == ["CMA-7 (imported)", "CMA-8 (imported)"]
    assert [round(9 * each.summary.metrics["SR"].mean) for each in found if each.summary.metrics["SR"]] == [4, 1]


def test_means_alone_are_a_table_and_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign.vlnce(tmp_path / "theirs", outcomes())
    assert main(["import", str(tmp_path / "theirs" / "stats_ckpt_7_val_unseen.json")]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[:6] == ["val_unseen", "7", "44.44", "22.22", "66.67", "3.78"]
    empty = foreign.write(tmp_path / "stats_ckpt_8_val_unseen.json", "")
    assert main(["import", str(empty), "--format=vlnce"]) == 2
    assert not (tmp_path / "runs").exists()


def test_a_format_of_somebody_else(root: Path, tmp_path: Path) -> None:
    content = [{"number": i, "won": i < 2, "efficiency": float(i < 2), "away": 2.5 + 1.5 * i} for i in range(3)]
    foreign.write(tmp_path / "other.json", json.dumps(content))  # a list
    done = imported(tmp_path / "other.json", root, format=f"{__name__}:MINE", split="val_unseen")
    assert [done.summary.metrics[name].mean for name in ("SR", "NE")] == pytest.approx([2 / 3, 4.0])  # type: ignore[union-attr]
    assert done.summary.identity.episodes_of == "3 of 9 (3 chosen by id)"
    assert "DIFFERS: success 3 m or more from the goal in 1 episodes, 1 first" in done.remarks


@pytest.mark.parametrize(("field", "unknown"), [("success", {"SR", "SDTW"}), ("spl", {"SPL"})])
def test_what_a_format_does_not_have_stays_unknown(
    field: str, unknown: set[str], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("success", "spl", "oracle_success", "distance_to_goal", "ndtw", "path_length")
    kind = replace(MINE, scores={name: name for name in names if name != field}, episode="episode_id")
    monkeypatch.setattr(f"{__name__}.MINE", kind)
    lines = [json.dumps({"episode_id": name, **one}) for name, one in outcomes().items()]
    foreign.write(tmp_path / "mine.json", "\n".join(lines))
    done = imported(tmp_path / "mine.json", root, format=f"{__name__}:MINE", split="val_unseen")
    absent = {label for label, value in done.summary.metrics.items() if value is None}
    assert absent == unknown | {"CLS", "steps", "collisions"}
    expected = {"unknown": 9} if field == "success" else {"success": 4, "passed_goal": 2, "unknown": 3}
    assert {ended: count for ended, count in done.summary.failures.items() if count} == expected
    assert not [remark for remark in done.remarks if "DIFFERS" in remark]


def test_sdtw_is_that_of_the_file(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: success times nDTW is 0.4 in all; the file says 0.401, 0.3 and nothing."""
    kind = replace(MINE, scores={**MINE.scores, "dtw": "ndtw", "both": "sdtw"})
    monkeypatch.setattr(f"{__name__}.MINE", kind)
    content: list[dict[str, float]] = [
        {"number": i, "won": 1, "efficiency": 1.0, "away": 1.0, "dtw": 0.4} for i in range(3)
    ]
    content[0]["both"], content[1]["both"] = 0.401, 0.3
    foreign.write(tmp_path / "mine.json", json.dumps(content))
    done = imported(tmp_path / "mine.json", root, format=f"{__name__}:MINE", split="val_unseen")
    rows = load_run(done.folder).rows.values()
    assert [row.scores["sdtw"] for row in rows] == [0.401, 0.3, 0.4]
    differing = [remark for remark in done.remarks if "DIFFERS" in remark]
    assert differing == ["DIFFERS: SDTW more than 0.01 from success times nDTW in 1 episodes, 1 first"]


def test_formats_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert [each.name for each in every_format()] == [*WRITERS, "evalai"]
    assert get_format("navila").name == "navila"
    assert main(["list"]) == 0
    assert "NaVILA's navila_trainer.py" in capsys.readouterr().out
