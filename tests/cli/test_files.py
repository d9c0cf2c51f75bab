"""Files of a run that cannot be read: one line that names the file, and a page of many runs without that run."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import RandomAgent
from tests.runs import record, write_dataset
from vlnbench.cli import main
from vlnbench.evaluation.records import ATTEMPTS, MANIFEST, ROWS, TRAJECTORIES

FILES = (MANIFEST, ROWS, ATTEMPTS, TRAJECTORIES)
FAULTS = [errno.EACCES, errno.EIO, errno.ESTALE, errno.EDQUOT]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    data = write_dataset(root / "data")
    for name in ("a", "b"):
        record(data, RandomAgent(), root / name)
    return root


def commands(root: Path, page: Path) -> dict[str, list[str]]:
    a, b, out = str(root / "a"), str(root / "b"), ["--out", str(page), "--data-root", str(page.parent / "none")]
    return {
        "status": ["status", a],
        "rank": ["rank", a, b],
        "compare": ["compare", a, b],
        "report": ["report", a, *out],
        "view": ["view", a, b, *out],
    }


class Damaged(io.BytesIO):
    """Can be opened, but not read."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def read(self, *_: Any) -> bytes:
        raise OSError(self._number, os.strerror(self._number))

    readline = read  # type: ignore[assignment]


def check(root: Path, page: Path, command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command has named the file in one line, or has not needed it."""
    code = main(commands(root, page)[command])
    out, err = capsys.readouterr()
    told = [line for line in (out + err).splitlines() if f"a/{name}" in line]
    unread = name == TRAJECTORIES and command in ("status", "rank", "compare")
    if unread or command == "view":
        assert code == 0
        assert len(told) == (0 if unread else 1), out + err
    else:
        assert code == 2
        assert told == err.splitlines()[-1:]
        assert "Traceback" not in err


@pytest.mark.parametrize("command", commands(Path(), Path()))
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("number", FAULTS)
@pytest.mark.parametrize("opens", [False, True])
def test_a_file_that_cannot_be_read_is_named(
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    name: str,
    number: int,
    opens: bool,
) -> None:
    path, real = runs / "a" / name, Path.open

    def opened(self: Path, *arguments: Any, **options: Any) -> Any:
        if self != path:
            return real(self, *arguments, **options)
        if not opens:
            raise OSError(number, os.strerror(number), str(self))
        return Damaged(number)

    monkeypatch.setattr(Path, "open", opened)
    check(runs, tmp_path / "page.html", command, name, capsys)


@pytest.mark.parametrize("command", commands(Path(), Path()))
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
def test_what_is_no_file_is_refused_at_once(
    tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str], command: str, name: str, what: str
) -> None:
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        for path in (runs / run).iterdir():
            (tmp_path / run / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "a" / name
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    began = time.monotonic()
    if name == MANIFEST:  # no run, then
        code = main(commands(tmp_path, tmp_path / "page.html")[command])
        out, err = capsys.readouterr()
        assert code == 2 or command == "view"
        assert sum(f"{tmp_path}/a: " in line for line in (out + err).splitlines()) == 1, out + err
    else:
        check(tmp_path, tmp_path / "page.html", command, name, capsys)
    assert time.monotonic() - began < 60


_SLOW_TO_CLOSE = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where these tests run in the background
import vlnbench.cli, vlnbench.cli.selected
class Slow:
    def run(self):
        try:
            print("begun", flush=True)
            time.sleep(60)
        finally:
            print("closing", flush=True)
            time.sleep(60)
vlnbench.cli.selected.parse = lambda *_: Slow()
sys.exit(vlnbench.cli.main([]))
"""


def test_a_second_ctrl_c_ends_at_once_in_one_line() -> None:
    program = [sys.executable, "-c", _SLOW_TO_CLOSE]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for word in ("begun", "closing"):
            assert process.stdout.readline().strip() == word
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines() == ["vlnbench: interrupted twice, ended at once; run the same command again to resume"]
