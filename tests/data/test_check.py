from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.synthetic import SCENE, ground_truth, heading, r2r_entry, rxr_entry, write, write_split
from vlnbench.cli import main
from vlnbench.data import benchmarks
from vlnbench.data.check import Item, check_data
from vlnbench.errors import UsageError

ENTRIES = [r2r_entry(7), r2r_entry(8)]


@pytest.fixture(autouse=True)
def small_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two benchmarks over the same files with two episodes a split, and one over RxR."""
    r2r = replace(benchmarks.BENCHMARKS["r2r-ce"], splits={"train": 2, "val_seen": 2, "test": None})
    small = {"r2r-ce": r2r, "r2r-vlnce": replace(r2r, name="r2r-vlnce")}
    rxr = replace(benchmarks.BENCHMARKS["rxr-ce"], splits={"val_unseen": None})
    monkeypatch.setattr(benchmarks, "BENCHMARKS", small | {"rxr-ce": rxr})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root to which nothing is to be said."""
    write_split(tmp_path / "datasets" / "r2r" / "val_seen", "val_seen", ENTRIES)
    write(tmp_path / "scene_datasets" / SCENE, b"glTF")
    return tmp_path


def failures(root: Path, benchmark: str | None = None, split: str | None = None) -> list[Item]:
    return [item for item in check_data(root, benchmark, split) if not item.ok]


def only_failure(root: Path) -> str:
    (item,) = failures(root)
    assert str(item).startswith("FAIL")
    assert "\n" not in str(item)
    return str(item)


def test_sound_data(root: Path) -> None:
    items = list(check_data(root))
    assert [item.name for item in items] == ["files", "sha256", "version", "episodes", "ground truth", "scenes"]
    assert {item.subject for item in items} == {"val_seen of r2r-ce, r2r-vlnce"}
    assert all(item.ok and str(item).startswith("ok") for item in items)
    details = {item.name: item.detail for item in items}
    assert details["version"] == "v1-3"
    assert details["episodes"] == "2, as published"
    assert len(details["sha256"]) == 64
    assert [item.subject for item in check_data(root, "r2r-ce", "val_seen")] == ["val_seen of r2r-ce"] * 6


def test_everything_that_is_found_is_checked(root: Path) -> None:
    write_split(root / "datasets" / "r2r" / "train", "train", ENTRIES)
    write_split(root / "datasets" / "rxr" / "val_unseen", "val_unseen_guide", [rxr_entry()])
    subjects = list(dict.fromkeys(item.subject for item in check_data(root)))
    assert subjects == ["train of r2r-ce, r2r-vlnce", "val_seen of r2r-ce, r2r-vlnce", "val_unseen of rxr-ce"]
    assert not failures(root)
    assert {item.subject for item in check_data(root, split="train")} == {subjects[0]}
    assert {item.subject for item in check_data(root, "rxr-ce")} == {subjects[2]}


def test_files_that_are_not_taken_are_named(root: Path) -> None:
    other = write_split(root / "datasets" / "R2R_VLNCE_v1-3" / "val_seen", "val_seen", ENTRIES)
    files = next(item for item in check_data(root) if item.name == "files")
    assert files.ok
    assert str(other) in files.detail.split("; not taken: ")[0]
    assert files.detail.endswith("r2r/val_seen/val_seen.json.gz")


def test_a_wrong_count(root: Path) -> None:
    write(root / "datasets" / "r2r" / "val_seen" / "val_seen.json.gz", {"episodes": ENTRIES[:1]})
    assert "episodes: 1, but 2 were published" in only_failure(root)


def test_a_bad_field(root: Path) -> None:
    path = root / "datasets" / "r2r" / "val_seen" / "val_seen.json.gz"
    write(path, {"episodes": [r2r_entry(7), r2r_entry(8, start_position=[0.0])]})
    assert f"episodes: {path}: episode 8: field 'start_position': expected three" in only_failure(root)


def test_a_damaged_file(root: Path) -> None:
    path = root / "datasets" / "r2r" / "val_seen" / "val_seen.json.gz"
    path.write_bytes(path.read_bytes()[:-30])
    assert f"{path}: not a readable (gzipped) JSON file" in only_failure(root)


def test_missing_and_incomplete_ground_truth(root: Path) -> None:
    path = root / "datasets" / "r2r" / "val_seen" / "val_seen_gt.json.gz"
    write(path, ground_truth(ENTRIES[:1]))
    assert f"ground truth: {path}: episode 8: no entry" in only_failure(root)
    path.unlink()
    assert "ground truth: missing; nDTW and SDTW need it" in only_failure(root)


def test_a_split_without_goals_needs_no_ground_truth(root: Path) -> None:
    entry = {key: value for key, value in r2r_entry().items() if key not in ("info", "goals", "reference_path")}
    write(root / "datasets" / "r2r" / "test" / "test.json.gz", {"episodes": [entry]})
    assert not failures(root, split="test")


def test_missing_scenes_are_counted_and_the_first_are_named(root: Path) -> None:
    entries = [r2r_entry(i, scene_id=f"mp3d/s{i}/s{i}.glb") for i in range(5)]
    write_split(
        root / "datasets" / "rxr" / "val_unseen",
        "val_unseen_guide",
        [rxr_entry(str(i), scene_id=e["scene_id"]) for i, e in enumerate(entries)],
    )
    text = only_failure(root)
    assert f"scenes: 5 of 5 are missing below {root / 'scene_datasets'}: mp3d/s0/s0.glb, mp3d/s1/s1.glb" in text
    assert text.endswith("mp3d/s2/s2.glb, ...")


def test_headings_that_contradict_the_folder(root: Path) -> None:
    shutil.rmtree(root / "datasets" / "r2r")
    entries = [r2r_entry(7, start_rotation=heading(10.0)), r2r_entry(8)]
    write_split(root / "datasets" / "R2R_VLNCE_v1-3" / "val_seen", "val_seen", entries)
    assert "version: the folder says v1-3, but the start headings are those of v1-2" in only_failure(root)


def test_nothing_there_and_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no split of any benchmark is there"):
        list(check_data(tmp_path))
    with pytest.raises(UsageError, match="no split of rxr-ce is there"):
        list(check_data(tmp_path, "rxr-ce"))
    with pytest.raises(UsageError, match="no episode file for r2r-ce val_seen"):
        list(check_data(tmp_path, "r2r-ce", "val_seen"))
    with pytest.raises(UsageError, match="unknown split 'val_sen': did you mean 'val_seen'"):
        list(check_data(tmp_path, split="val_sen"))
    with pytest.raises(UsageError, match="unknown benchmark 'r2r'"):
        list(check_data(tmp_path, "r2r"))


def test_the_command_prints_every_item_and_fails(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["data", "check", "--data-root", str(root)]
    assert main(command) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6
    (root / "scene_datasets" / SCENE).unlink()
    assert main(command) == 2
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 6
    assert output.err == f"vlnbench: error: 1 checks of the data below {root} failed\n"
