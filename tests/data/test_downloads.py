"""What `vlnbench data fetch` says, and that it checks what is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.synthetic import r2r_entry, write, write_split
from vlnbench.cli import main
from vlnbench.data import benchmarks, downloads
from vlnbench.data.downloads import DOWNLOADS


def test_every_download_says_from_where_and_under_which_license() -> None:
    for name, download in DOWNLOADS.items():
        assert download.license, name
        assert download.told.startswith("https://"), name
        assert any("ROOT" in step for step in download.steps), name


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "fetch"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in DOWNLOADS)


def test_the_help_names_every_download(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["data", "fetch", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"What to get: {', '.join(DOWNLOADS)}; default" in shown


def test_steps_name_the_data_root_and_what_is_not_there_is_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in DOWNLOADS:
        assert main(["data", "fetch", "--what", name, "--data-root", str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        assert "license   " in shown
        assert "ROOT" not in shown
        assert str(tmp_path) in shown
        assert f"nothing of it is below {tmp_path} yet" in shown


def test_what_is_there_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    r2r = replace(benchmarks.BENCHMARKS["r2r-ce"], splits={"val_seen": 2})
    monkeypatch.setattr(benchmarks, "BENCHMARKS", {"r2r-ce": r2r})
    command = ["data", "fetch", "--what", "r2r-ce", "--data-root", str(tmp_path)]
    folder = tmp_path / "datasets" / "R2R_VLNCE_v1-3_preprocessed" / "val_seen"
    write_split(folder, "val_seen", [r2r_entry(7), r2r_entry(8)])
    assert main(command) == 0  # scenes are another download
    assert "episodes: 2, as published" in capsys.readouterr().out
    write_split(folder, "val_seen", [r2r_entry(7)])
    assert main(command) == 2
    assert "1 of 5 checks of r2r-ce" in capsys.readouterr().err


def test_scenes_are_counted_and_those_that_lack_a_file_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "MP3D_SCENES", 2)
    scenes = tmp_path / "scene_datasets" / "mp3d"
    for scan in ("a", "b"):
        write(scenes / scan / f"{scan}.glb", b"glTF")
    write(scenes / "a" / "a.navmesh", b"x")
    command = ["data", "fetch", "--what", "mp3d", "--data-root", str(tmp_path)]
    assert main(command) == 2
    assert f"FAIL  mp3d  .navmesh: 1 of 2 below {scenes}; not for b" in capsys.readouterr().out
    write(scenes / "b" / "b.navmesh", b"x")
    assert main(command) == 0


def test_an_unknown_download_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "fetch", "--what", "rxr"]) == 2
    assert "did you mean 'rxr-ce'" in capsys.readouterr().err
