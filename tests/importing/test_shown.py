"""Nothing imported passes for a run of vlnbench, wherever it is shown."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agents.scripted import GroundTruthReplayAgent, StopAgent
from tests.importing import foreign
from tests.importing.foreign import outcomes
from tests.importing.test_formats import imported
from tests.runs import record
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.evaluation.records import MANIFEST
from vlnbench.importing.formats import get_format
from vlnbench.leaderboard.board import load, make_tables, summary_line
from vlnbench.leaderboard.committed import Entry, add_run
from vlnbench.leaderboard.compare import compare, format_comparison
from vlnbench.leaderboard.ranking import rank
from vlnbench.leaderboard.reproduction import make_ledger
from vlnbench.views.runs import pairs, read_runs

RESULTS = Path(__file__).parents[2] / "results"
MARK = "IMPORTED, not run here: {} (imported); not known and perhaps not the same: "


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return foreign.data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def theirs(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Results of two agents with an unknown protocol: success in 0 to 3, and in 2 to 6."""
    monkeypatch.chdir(tmp_path)
    foreign.navila(tmp_path / "a", outcomes())
    foreign.vlnce(tmp_path / "b", outcomes(range(2, 7)))
    return tuple(imported(tmp_path / name, root, name=name.upper()).folder for name in "ab")  # type: ignore[return-value]


def test_pairs_of_two_imports_by_hand(theirs: tuple[Path, Path]) -> None:
    found = compare(*theirs)
    assert (found.wins, found.losses, found.both, found.neither) == (["4", "5", "6"], ["0", "1"], 2, 2)
    assert found.p_value == 1.0  # 3 against 2
    success, away = found.differences["SR"], found.differences["NE"]
    assert success is not None
    assert away is not None
    assert [success.by_scene.mean, success.by_scene.n] == pytest.approx([1 / 9, 9])
    assert away.by_scene.mean == pytest.approx(-5 / 9)  # one more of nine is 5 m nearer
    assert success.by_scene.clusters == 3
    text = " ".join(format_comparison(found).split())
    for name in ("A", "B-7"):
        assert MARK.format(name) + "protocol, dataset_version, simulator" in text
    assert found.to_json()["imported"] == ["navila", "vlnce"]


def test_nothing_is_won_or_lost_where_success_is_not_known(
    root: Path, theirs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = get_format("navila")
    scores = {name: ours for name, ours in kind.scores.items() if ours != "success"}
    monkeypatch.setattr("agents.results.NAVILA", replace(kind, scores=scores))
    found = compare(imported(tmp_path / "a", root, name="untold").folder, theirs[0])
    assert (found.to_json()["success"], found.to_json()["mcnemar_p"]) == (None, None)
    assert (found.pairs, found.both, found.neither, found.wins, found.losses) == (9, 0, 0, [], [])
    text = format_comparison(found)
    assert "NE (m)" in text
    assert "success:" not in text


def test_own_runs_beside_imported_ones(
    root: Path, theirs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(root, StopAgent(), tmp_path / "own", "r2r-ce")
    found = compare(tmp_path / "own", theirs[0])
    assert (len(found.wins), len(found.losses)) == (4, 0)
    unplaced = imported(tmp_path / "a", tmp_path / "nowhere", name="unplaced").folder
    success = compare(unplaced, tmp_path / "own").differences["SR"]
    assert success is not None
    assert (success.by_scene.clusters, success.by_trajectory.clusters) == (3, 9)  # as the own run knows them
    assert main(["rank", str(theirs[0]), str(tmp_path / "own")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert MARK.format("A") in text
    assert (text.count("not run here"), "A (imported)" in text.partition("IMPORTED")[0]) == (1, True)


def test_an_import_does_not_bring_unlike_runs_together(
    root: Path, theirs: tuple[Path, Path], tmp_path: Path
) -> None:
    """Whose simulator is not known fits each of two simulators, which do not fit each other."""
    for name in ("one", "two"):
        record(root, StopAgent(), tmp_path / name, "r2r-ce")
    manifest = tmp_path / "two" / MANIFEST
    manifest.write_text(manifest.read_text().replace("plane-1", "plane-2"))
    with pytest.raises(UsageError, match=r"cannot share a table.*plane-1.*plane-2"):
        rank([theirs[0], tmp_path / "one", tmp_path / "two"])


def test_an_import_stated_to_be_of_another_protocol_is_refused(
    root: Path, tmp_path: Path, theirs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    other = imported(tmp_path / "a", root, benchmark="r2r-navila").folder
    assert main(["compare", str(theirs[1]), str(other)]) == 2
    assert "cannot share a table: benchmark 'r2r-ce' / 'r2r-navila'" in capsys.readouterr().err


def test_the_leaderboard_marks_them_and_the_ledger_does_not_judge_them(
    root: Path, theirs: tuple[Path, Path], tmp_path: Path
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    shutil.copy(RESULTS / "published.json", results)
    stated = imported(tmp_path / "a", root, benchmark="r2r-navila", name="S").folder
    add_run(stated, results, Entry(name="NaVILA", reproduces="navila-r2r-val-unseen"))
    add_run(theirs[1], results, Entry(name="B-7 (imported)"))
    literature, runs = load(results)
    tables = make_tables(literature, runs)
    assert summary_line(tables).endswith("0 runs, 2 imported")
    rows = {(table.protocol, row.method): row for table in tables for row in table.rows}
    for key in (("r2r-navila", "NaVILA (imported)"), ("unknown", "B-7 (imported)")):
        assert rows[key].evidence == "imported"
        assert "not run here" in str(rows[key].note)
        assert rows[key].metrics["SR"].n == 9
    findings = [each for each in make_ledger(literature, runs) if each.method == "NaVILA (imported)"]
    assert {each.verdict for each in findings} == {"not comparable"}
    assert all("imported from files of navila: not run here" in str(each.reason) for each in findings)
    manifest = json.loads(next(results.glob("runs/*navila*/manifest.json")).read_text())
    assert manifest["trajectories"]["made_by"] == "vlnbench import of the files that 'imported' names"


def test_reports_and_views_mark_them(root: Path, theirs: tuple[Path, Path], tmp_path: Path) -> None:
    assert main(["report", str(theirs[0]), f"--data-root={root}", "--env=tests.importing.foreign:Plane"]) == 0
    page = (theirs[0] / "report.html").read_text()
    assert "imported as navila: not run here" in page
    assert "Imported: the file tells of no success, and not how it ended." in page
    record(root, GroundTruthReplayAgent(), tmp_path / "own", "r2r-ce")
    assert (
        main(["report", str(tmp_path / "own"), f"--data-root={root}", "--env=tests.importing.foreign:Plane"]) == 0
    )
    assert "mported" not in (tmp_path / "own" / "report.html").read_text().partition("<script")[0]
    out = tmp_path / "view.html"
    stated = imported(tmp_path / "a", root, benchmark="r2r-ce", name="S").folder
    shown, problems = read_runs([tmp_path / "own", stated, theirs[0]])
    assert problems == []
    (together,) = pairs(shown)  # not with the one whose protocol is not known
    assert {shown[together[side]].name for side in "ab"} == {"agent", "S (imported)"}
    assert (
        main(["view", "runs", f"--out={out}", f"--data-root={root}", "--env=tests.importing.foreign:Plane"]) == 0
    )
    assert '"imported (navila)"' in out.read_text()


def test_what_only_own_runs_can_do(theirs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rescore", str(theirs[0])]) == 2
    assert "imported results; run `vlnbench import` again on their files" in capsys.readouterr().err
    assert main(["status", str(theirs[0])]) == 0
    assert "A (imported)" in capsys.readouterr().out
