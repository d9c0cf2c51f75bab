from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import GroundTruthReplayAgent, RandomAgent
from agents.table import FAMILIES
from tests.evaluation.test_evaluate import BENCHMARK, plan
from tests.fakes import PlaneEnv
from vlnbench.cli import main
from vlnbench.cli.results.leaderboard import Leaderboard
from vlnbench.data.benchmarks import BENCHMARKS
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import evaluate
from vlnbench.evaluation.records import MANIFEST, ROWS, TRAJECTORIES
from vlnbench.leaderboard.board import OURS, load, make_tables, outdated
from vlnbench.leaderboard.committed import committed_runs
from vlnbench.leaderboard.compare import compare
from vlnbench.leaderboard.reproduction import make_ledger, not_measured, render_ledger
from vlnbench.leaderboard.sheets import render
from vlnbench.rollout.inline import Inline

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder with the committed literature and no runs."""
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(RESULTS / "published.json", folder)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    evaluate(plan("random"), Inline(RandomAgent(), PlaneEnv()), tmp_path / "run")
    return tmp_path / "run"


def as_benchmark(folder: Path, **identity: Any) -> None:
    """Rewrite what a run says it was."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["identity"] |= identity
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_the_committed_files_are_those_of_the_committed_data() -> None:
    literature, runs = load(RESULTS)
    ledger = [*make_ledger(literature, runs), *not_measured(literature, runs, list(FAMILIES))]
    files = render(make_tables(literature, runs)) | render_ledger(ledger)
    assert outdated(files, RESULTS) == []


def test_csv_and_json_hold_every_published_value() -> None:
    literature, _ = load(RESULTS)
    files = render(make_tables(literature, []))
    lines = list(csv.DictReader(io.StringIO(files["leaderboard.csv"])))
    tables = json.loads(files["leaderboard.json"])
    assert len(lines) == len(literature.rows) == sum(len(table["rows"]) for table in tables)
    for row in literature.rows:
        wanted = {label: str(value) for label, value in row.metrics.model_dump(exclude_none=True).items()}
        key = (row.dataset, row.split, row.method)
        same = [line for line in lines if (line["dataset"], line["split"], line["method"].lstrip("'")) == key]
        assert any(all(line[label] == value for label, value in wanted.items()) for line in same), row.id


def test_unlike_protocols_are_separate_tables(results: Path, run: Path) -> None:
    literature, runs = load(results, [run])
    tables = {(table.dataset, table.split, table.protocol): table for table in make_tables(literature, runs)}
    assert [row.method for row in tables["houses-r2r", "val_unseen", "houses-r2r"].rows] == ["random"]
    for table in tables.values():
        names = {row.method for row in table.rows}
        assert not {"JanusVLN", "ETPNav"} <= names
        assert not {"JanusVLN", "random"} <= names
    assert "JanusVLN" in {row.method for row in tables["R2R-CE", "val_unseen", "r2r-ce"].rows}


def test_other_languages_are_another_table(results: Path, run: Path) -> None:
    tables = make_tables(load(results)[0], [])
    english = [
        t for t in tables if t.dataset == "RxR-CE" and t.split == "val_unseen" and t.protocol == "rxr-uninavid"
    ]
    assert [table.languages for table in english] == ["en-IN, en-US", None]
    for table in tables:
        assert {row.languages for row in table.rows} == {table.languages}
    text = render(tables)["leaderboard.md"]
    assert "## RxR-CE val\\_unseen, protocol rxr-uninavid, languages en-IN, en-US\n" in text
    assert "## RxR-CE val\\_unseen, protocol rxr-uninavid, languages unknown\n" in text
    assert "## R2R-CE val\\_unseen, protocol r2r-uninavid\n" in text
    as_benchmark(run, benchmark="rxr-habitat", fingerprint=BENCHMARKS["rxr-habitat"].fingerprint)
    ours = next(t for t in make_tables(*load(results, [run])) if any(row.evidence == OURS for row in t.rows))
    assert (ours.dataset, ours.languages) == ("RxR-CE", "en-IN, en-US, hi-IN, te-IN")


def test_a_part_of_the_split_and_privileges_are_labeled() -> None:
    text = render(make_tables(load(RESULTS)[0], []))["leaderboard.md"]
    [lavira] = [line for line in text.splitlines() if "Uni-LaViRA" in line and "60.7" in line]
    assert "100 (PARTIAL)" in lavira
    [stereo] = [line for line in text.splitlines() if "| StereoNav |" in line and "| 81.1 " in line]
    assert "target-location prior, privileged" in stereo


def test_a_run_joins_the_table_of_its_protocol_unless_its_fingerprint_is_another(results: Path, run: Path) -> None:
    as_benchmark(run, benchmark="r2r-ce", fingerprint=BENCHMARKS["r2r-ce"].fingerprint, dataset_version="v1-3")
    table = next(t for t in make_tables(*load(results, [run])) if t.protocol == "r2r-ce" and t.dataset == "R2R-CE")
    ours = next(row for row in table.rows if row.evidence == OURS)
    assert (ours.dataset_version, ours.simulator, ours.episodes, ours.partial) == (
        "v1-3",
        "plane-1",
        "9 of 9",
        False,
    )
    assert ours.metrics["SR"].n == 9
    as_benchmark(run, fingerprint="an older one")
    tables = make_tables(*load(results, [run]))
    assert [row.method for t in tables if t.protocol == "r2r-ce an older one" for row in t.rows] == ["random"]


def test_own_benchmarks_of_one_name_share_no_table_unless_they_are_the_same(
    results: Path, run: Path, tmp_path: Path
) -> None:
    folders, fingerprints = [], []
    for number, steps in enumerate((12, 12, 15)):
        mine = replace(BENCHMARK, name="mine", max_steps=steps)
        folders.append(shutil.copytree(run, tmp_path / str(number)))
        as_benchmark(folders[-1], benchmark="mine", fingerprint=mine.fingerprint)
        manifest = json.loads((folders[-1] / MANIFEST).read_text())
        (folders[-1] / MANIFEST).write_text(json.dumps(manifest | {"protocol": asdict(mine)}))
        fingerprints.append(mine.fingerprint)
    tables = [t for t in make_tables(*load(results, folders)) if t.dataset == "mine"]
    assert {t.protocol: len(t.rows) for t in tables} == {
        f"mine {fingerprints[0]}": 2,
        f"mine {fingerprints[2]}": 1,
    }


def test_runs_over_other_data_files_share_no_table(
    results: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"one": "1" * 64, "same": "1" * 64, "two": "2" * 64, "unknown": "unknown"}
    for name, digest in data.items():
        as_benchmark(shutil.copytree(run, tmp_path / name), dataset_sha256=digest)
    counted = {
        names: {t.protocol: len(t.rows) for t in make_tables(*load(results, folders)) if t.dataset == "houses-r2r"}
        for names in (("one", "same", "unknown"), ("one", "same", "two", "unknown"))
        if (folders := [tmp_path / name for name in names])
    }
    apart = {"houses-r2r": 1, "houses-r2r data 11111111": 2, "houses-r2r data 22222222": 1}
    assert [*counted.values()] == [{"houses-r2r": 3}, apart]
    folders = [tmp_path / "one", tmp_path / "two"]
    described = {t.protocol: t.description for t in make_tables(*load(results, folders))}
    assert described["houses-r2r data 22222222"].endswith(
        "Over data files 22222222 alone; other runs are over others, and published results may be."
    )
    assert len(printed(capsys, *folders, "--results", results, "--benchmark", "houses-r2r")) == 2
    as_benchmark(tmp_path / "two", partial=True)  # and moves none that has the published number of episodes
    counted_again = {
        t.protocol: len(t.rows) for t in make_tables(*load(results, folders)) if "houses" in t.protocol
    }
    assert counted_again == {"houses-r2r": 1, "houses-r2r data 22222222": 1}


def test_a_partial_run_is_labeled_and_ranked_last(results: Path, run: Path, tmp_path: Path) -> None:
    evaluate(plan("gt", count=3), Inline(GroundTruthReplayAgent(), PlaneEnv()), tmp_path / "part")
    tables = make_tables(*load(results, [tmp_path / "part", run]))
    table = next(t for t in tables if t.protocol == "houses-r2r")
    assert [(row.method, row.partial) for row in table.rows] == [("random", False), ("gt", True)]
    assert "| gt | this repository | privileged |" in render([table])["leaderboard.md"]
    assert "| 3 of 9 (PARTIAL) |" in render([table])["leaderboard.md"]


def test_a_run_is_committed_and_computed_from_its_rows(results: Path, run: Path) -> None:
    odd = "=odd | `name`\n<b>"
    assert main(["leaderboard", str(run), "--results", str(results), "--add", "--name", odd]) == 0
    [(recorded, entry)] = committed_runs(results)
    assert entry.name == odd
    assert {path.name for path in recorded.folder.iterdir()} == {
        MANIFEST,
        f"{ROWS}.gz",
        f"{TRAJECTORIES}.gz",
        "entry.json",
    }
    assert compare(run, recorded.folder).differences == compare(run, run).differences
    text = (results / "leaderboard.md").read_text()
    assert "| =odd \\| &#96;name&#96; &lt;b&gt; | this repository |" in text
    assert "'=odd | `name` <b>" in (results / "leaderboard.csv").read_text()
    assert main(["leaderboard", "--results", str(results), "--check"]) == 0
    assert main(["leaderboard", str(run), "--results", str(results), "--check"]) == 0, "the same run counts once"
    for name in ("leaderboard.csv", "sr_over_time.svg"):
        before = (results / name).read_text()
        (results / name).write_text("")
        assert main(["leaderboard", "--results", str(results), "--check"]) == 1
        (results / name).write_text(before)


def test_away_from_a_checkout_it_begins_with_the_shipped_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["leaderboard", "--check"]) == 2
    assert not (tmp_path / "results").exists()
    assert main(["leaderboard"]) == 0
    assert "results is not there: made, with the published rows" in capsys.readouterr().err
    shipped = Path(__file__).parents[2] / "results" / "published.json"
    assert (tmp_path / "results" / "published.json").read_bytes() == shipped.read_bytes()
    assert "NavGPT" in (tmp_path / "results" / "leaderboard.md").read_text("utf-8")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[dict[str, Any]]:
    assert main(["leaderboard", "--format", "json", *map(str, arguments)]) == 0
    tables: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return tables


def test_what_is_asked_for_is_printed_and_nothing_written(
    results: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(results.iterdir())
    asked = (
        "--results",
        results,
        "--benchmark",
        "r2r-ce",
        "--split",
        "val_unseen",
        "--backbone",
        "qwen2.5",
        "llava",
    )
    (unseen,) = printed(capsys, *asked, "--own", "JanusVLN")
    assert unseen["title"] == "R2R-CE val_unseen, protocol r2r-ce"
    names = {row["method"]: row for row in unseen["rows"]}
    assert [name for name, row in names.items() if row["own"]] == ["JanusVLN"]
    # 60.5 and 57.4 of 1,839: 1.96 sqrt((0.605 * 0.395 + 0.574 * 0.426) / 1839) = 3.18; 56.9 is farther
    best = [name for name, row in names.items() if row["SR"] and row["SR"]["best"]]
    assert best == ["JanusVLN", "StreamVLN, revised, Prune-Mem"]
    assert [name for name, row in names.items() if row["NE"] and row["NE"]["best"]] == [best[1]]
    janus = printed(
        capsys, "--results", results, "--backbone", "qwen2.5-vl", "--metrics", "SPL", "--since", "2025-09"
    )
    assert {row["method"].partition(",")[0] for table in janus for row in table["rows"]} == {"JanusVLN"}
    assert "SR" not in janus[0]["rows"][0]
    assert {
        row["sensors"] for t in printed(capsys, "--results", results, "--sensors", "rgb") for row in t["rows"]
    } == {"RGB"}
    assert all(
        row["date"] < "2022"
        for t in printed(capsys, "--results", results, "--before", "2022")
        for row in t["rows"]
    )
    (own,) = printed(capsys, run, "--results", tmp_path / "nowhere")
    assert [(row["method"], row["own"]) for row in own["rows"]] == [("random", True)]
    assert sorted(results.iterdir()) == before
    assert not (tmp_path / "nowhere").exists()
    assert main(["leaderboard", "--results", str(results), "--since", "2100"]) == 2
    assert "no row is left" in capsys.readouterr().err
    assert main(["leaderboard", *map(str, asked), "--own", "JanusVLN", "--format", "latex"]) == 0
    assert "JanusVLN (ours) & authors & RGB & Qwen2.5-VL-7B-Instruct & \\textbf{60.5}" in capsys.readouterr().out


def test_a_folder_of_results_begins_anywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["leaderboard", "--results", str(tmp_path / "a" / "b")]) == 0
    assert (tmp_path / "a" / "b" / "published.json").read_bytes() == (RESULTS / "published.json").read_bytes()
    assert (tmp_path / "a" / "b" / "leaderboard.md").exists()


def test_mistakes_write_nothing(results: Path, run: Path) -> None:
    def refused(message: str, *folders: Path, **options: Any) -> None:
        with pytest.raises(UsageError, match=message):
            Leaderboard(list(folders), **{"results": results, **options}).run()

    refused("published.json: cannot be read", results=run)
    refused("--add: expected one run folder", add=True)
    refused("together with --add", name="x")
    refused("unknown published row 'x'", run, add=True, reproduces="x")
    refused("not a run folder", results)
    refused("cannot be written", out=run / MANIFEST)
    (results / "runs").touch()
    refused("runs/houses-r2r-val-unseen-random: cannot be written", run, add=True)
    (results / "runs").unlink()
    assert [path.name for path in results.iterdir()] == ["published.json"]
    Leaderboard([run], results=results, add=True).run()
    refused("exists already", run, add=True)
    [(recorded, _)] = committed_runs(results)
    (recorded.folder / f"{ROWS}.gz").write_bytes(gzip.compress(b"{}\n")[:-9])
    refused("broken gzip file")
    shutil.copy(run / ROWS, recorded.folder / ROWS)
    (recorded.folder / "entry.json").write_text('{"name": 1}')
    refused("entry.json: field 'name'")


def ledger(results: Path, run: Path, reproduces: str | None) -> list[tuple[str | None, str, str | None]]:
    (run / "entry.json").write_text(json.dumps({"name": "ours", "reproduces": reproduces}))
    return [(finding.metric, finding.verdict, finding.reason) for finding in make_ledger(*load(results, [run]))]


def test_the_ledger_compares_what_is_claimed_and_alike(results: Path, run: Path) -> None:
    assert ledger(results, run, None) == [(None, "not comparable", "the run claims to reproduce no published row")]
    found = ledger(results, run, "streamvln-v1-3-r2r-val-unseen")
    assert {verdict for _, verdict, _ in found} == {"not comparable"}
    assert "protocol houses-r2r" in str(found[0][2])
    assert "data version unknown, published on v1-3" in str(found[0][2])
    as_benchmark(run, benchmark="r2r-ce", fingerprint=BENCHMARKS["r2r-ce"].fingerprint, dataset_version="v1-3")
    verdicts = {metric: verdict for metric, verdict, _ in ledger(results, run, "streamvln-v1-3-r2r-val-unseen")}
    assert set(verdicts) == {"SR", "SPL", "OS", "NE"}
    assert "not comparable" not in verdicts.values()
    as_benchmark(run, split_size=1839)
    assert "not whole" in str(ledger(results, run, "streamvln-v1-3-r2r-val-unseen")[0][2])


@pytest.mark.parametrize(
    ("published_id", "reason"),
    [
        ("bevbert-r2r-val-unseen", "protocol of the published row is unknown"),
        ("streamvln-prune-all-r2r-val-unseen", "data version of the published row is unknown"),
        ("cma-r2r-val-seen", "split val_unseen, published on val_seen"),
        ("streamvln-v1-3-rxr-val-unseen", "languages en-US, en-IN, hi-IN, te-IN, published on en-US, en-IN"),
        ("uni-navid-rxr-val-unseen", "published on unknown ones"),
    ],
)
def test_what_is_unknown_is_not_compared(results: Path, run: Path, published_id: str, reason: str) -> None:
    assert all(
        verdict == "not comparable" and reason in str(why)
        for _, verdict, why in ledger(results, run, published_id)
    )
