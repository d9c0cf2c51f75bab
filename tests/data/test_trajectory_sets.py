"""Published trajectory sets of which something is missing, in small."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.synthetic import r2r_entry, write, write_split
from vlnbench.data import benchmarks, trajectory_sets
from vlnbench.data.check import check_data
from vlnbench.data.trajectory_sets import SETS, check_sets


@pytest.fixture(autouse=True)
def small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every set whose size is known three trajectories were published."""
    small = tuple(replace(each, published=each.published and 3) for each in SETS)
    monkeypatch.setattr(trajectory_sets, "SETS", small)


def annotated(folder: Path, walks: Iterable[str], here: Iterable[str], name: str = "annotations.json") -> None:
    """A set in StreamVLN's layout: what its records name, and what lies there."""
    records = [
        {"id": i, "video": f"images/{walk}", "instructions": ["x"], "actions": [-1, 1]}
        for i, walk in enumerate(walks)
    ]
    write(folder / name, records)
    for walk in here:
        write(folder / "images" / walk / "rgb" / "000.jpg", b"frame")


def lines(root: Path, owner: str = "") -> list[str]:
    return [
        f"{'ok' if ok else 'FAIL'} {name} | {item}: {detail}"
        for name, (ok, item, detail) in check_sets(root, owner)
    ]


def test_a_whole_set_has_nothing_missing(tmp_path: Path) -> None:
    walks = ["s_r2r_000001", "s_r2r_000002", "s_r2r_000003"]
    annotated(tmp_path / "trajectory_data" / "R2R", walks, walks)
    assert lines(tmp_path) == [
        "ok trajectory_data/R2R of StreamVLN | annotations.json: 3 trajectories, as published",
        "ok trajectory_data/R2R of StreamVLN | folders of annotations.json: "
        f"all 3 below {tmp_path / 'trajectory_data' / 'R2R'}",
    ]


def test_missing_and_empty_folders_are_named_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "trajectory_data" / "R2R"
    walks = [f"s_r2r_{number:06d}" for number in range(1, 8)]
    annotated(folder, walks, [*walks[:2], "s_r2r_000099"])
    (folder / "images" / walks[2] / "rgb").mkdir(parents=True)
    counted, present, spare = lines(tmp_path)
    assert counted.startswith("FAIL") and "7 trajectories, but 3 were published" in counted  # noqa: PT018
    assert present.endswith(
        f"5 of 7 missing or empty below {folder}: images/{walks[2]}, images/{walks[3]}, images/{walks[4]}, ...; "
        "extract every archive of the set again"
    )
    assert spare == "ok trajectory_data/R2R of StreamVLN | other folders: 1 in no record: images/s_r2r_000099"


def test_both_versions_of_the_annotations_are_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / "trajectory_data" / "R2R"
    annotated(folder, ["a", "b", "c"], ["a", "b", "c"])
    annotated(folder, ["a", "b", "d"], [], "annotations_v1-3.json")
    assert [line.split(" | ")[1].split(":")[0] for line in lines(tmp_path) if line.startswith("FAIL")] == [
        "folders of annotations_v1-3.json"
    ]


def test_sets_without_published_frames_say_so(tmp_path: Path) -> None:
    annotated(tmp_path / "trajectory_data" / "EnvDrop", ["a", "b"], [])
    counted, present = lines(tmp_path)
    assert counted.endswith("2 trajectories (how many were published is not known)")
    assert present.startswith("FAIL") and f"data render {tmp_path / 'trajectory_data' / 'EnvDrop'}`" in present  # noqa: PT018


@pytest.mark.parametrize("video", ["/etc", "images/../../x", "a\0b", "", 3])
def test_records_may_not_lead_elsewhere(tmp_path: Path, video: object) -> None:
    write(tmp_path / "dagger_data" / "RxR" / "annotations.json", [{"video": video}])
    (line,) = lines(tmp_path)
    assert line.startswith("FAIL dagger_data/RxR of StreamVLN or JanusVLN")
    assert "record 0: field 'video': expected a path below the folder of the set" in line


def test_annotations_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "trajectory_data" / "RxR" / "images").mkdir(parents=True)
    (line,) = lines(tmp_path)
    assert "annotations.json is not there; extract every archive" in line


def test_numbered_folders_are_held_against_the_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    r2r = replace(benchmarks.BENCHMARKS["r2r-ce"], splits={"train": 3})
    monkeypatch.setattr(benchmarks, "BENCHMARKS", {"r2r-ce": r2r})
    folder = tmp_path / "trajectory_data" / "R2R-CE-640x480" / "train"
    for number in (2, 10):
        write(folder / str(number) / "step_0_MOVE_FORWARD.png", b"frame")
    (folder / "3").mkdir()
    assert [line.split(": ")[-1] for line in lines(tmp_path)] == [
        "2 trajectories, but 3 were published; extract every archive of the set again",
        "3; extract every archive of the set again",
    ]
    write_split(tmp_path / "datasets" / "r2r" / "train", "train", [r2r_entry(number) for number in (2, 3, 10)])
    (line,) = lines(tmp_path)
    assert line.startswith("FAIL trajectory_data/R2R-CE-640x480 of JanusVLN | folders in train: 1 of 3 missing")
    assert line.endswith(f"below {folder}: 3; extract every archive of the set again")


def test_numbered_sets_without_folders(tmp_path: Path) -> None:
    (tmp_path / "trajectory_data" / "RxR-CE-640x480").mkdir(parents=True)
    (line,) = lines(tmp_path, "JanusVLN")
    assert line.startswith("FAIL")
    assert "RxR-CE-640x480/train nor " in line
    assert not lines(tmp_path, "StreamVLN")


def test_sets_of_our_own_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "trajectory_data" / "R2R"
    annotated(folder, ["a"], [])
    write(folder / "collect.json", {})
    assert not lines(tmp_path)


def test_data_check_looks_at_sets_too(tmp_path: Path) -> None:
    annotated(tmp_path / "dagger_data" / "EnvDrop", ["a"], ["a"])
    assert [item.subject for item in check_data(tmp_path)] == ["dagger_data/EnvDrop of StreamVLN"] * 2
