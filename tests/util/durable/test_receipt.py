from __future__ import annotations

import os
from pathlib import Path

import pytest

from vlnbench.util.durable import receipt
from vlnbench.util.durable.receipt import RECEIPT, is_current, write_receipt

ASKED = {"agent": "a", "seed": 1}


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    """A folder with a receipt, and the file that it was made from."""
    folder, file = tmp_path / "run", tmp_path / "from" / "weights"
    folder.mkdir()
    file.parent.mkdir()
    file.write_text("12")
    write_receipt(folder, ASKED, [file])
    return folder, file


def test_it_holds_as_long_as_nothing_changes(made: tuple[Path, Path]) -> None:
    folder, _ = made
    assert is_current(folder, dict(ASKED))
    assert is_current(folder, ASKED)


def test_another_wish(made: tuple[Path, Path]) -> None:
    folder, _ = made
    assert not is_current(folder, ASKED | {"seed": "1"})
    assert not is_current(folder, ASKED | {"more": None})


def test_changed_files(made: tuple[Path, Path]) -> None:
    folder, file = made
    times = file.stat()
    file.write_text("13")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert not is_current(folder, ASKED)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert is_current(folder, ASKED)
    file.unlink()
    assert not is_current(folder, ASKED)


def test_a_file_beside_it(made: tuple[Path, Path]) -> None:
    folder, file = made
    (file.parent / "added_tokens.json").touch()
    assert not is_current(folder, ASKED)


@pytest.mark.parametrize(
    ("name", "value"),
    [("PACKAGES", ("torch", "numpy", "pytest")), ("_ROOTS", (Path(receipt.__file__).parent,))],
)
def test_another_program(
    made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setattr(receipt, name, value)
    assert not is_current(made[0], ASKED)


def test_gpus_that_come_and_go(made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert not is_current(made[0], ASKED)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"files": 3}', '{"files": [3]}', '{"files": [], "state": null}']
)
def test_whatever_else_lies_there(made: tuple[Path, Path], content: str) -> None:
    (made[0] / RECEIPT).write_text(content)
    assert not is_current(made[0], ASKED)
