"""Files that nobody would write are read, or refused in one line, within the limits of `tests.fuzz.judge`.

    pytest tests/fuzz  # 20 of each kind, always the same
    pytest tests/fuzz -n 2 -m slow --hypothesis-profile=long  # 10,000 of each, others every time
    python -m tests.fuzz KIND --record records  # 10,000 of one, by seeds that are recorded

A case is made from its seed, which is shown where one fails; a long run keeps it and tries it first the next time.
Once mended it becomes a case of its kind's `corpus`.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz import judge as limits
from tests.fuzz.judge import FINE, KINDS, Kind, Verdict, empty_folder, find, judge
from vlnbench.errors import UsageError

LARGE = {"episodes", "glb", "matrices"}
"""Kinds whose known cases are large files."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits, pipes and devices of Linux")


@pytest.mark.parametrize("cases", [20, pytest.param(None, id="as the profile says", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KINDS)
def test_changed_files_are_read_or_refused(name: str, cases: int | None) -> None:
    kind, verdicts = find(name), list[Verdict]()

    @settings(
        max_examples=cases or settings().max_examples,
        phases=[Phase.reuse, Phase.generate],  # a smaller seed makes no smaller file
    )
    @given(st.integers(0, 2**64))
    def one(seed: int) -> None:
        with empty_folder() as folder:
            kind.write(folder, Random(seed))
            verdicts.append(judge(kind, folder))
        assert verdicts[-1].name in FINE, verdicts[-1]

    one()
    if cases is None:
        assert {verdict.name for verdict in verdicts} == FINE, "some cases are harmless, others are not"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in KINDS],
)
def test_everything_found_so_far_ends_as_it_should(name: str) -> None:
    kind, wrong = find(name), []
    for case, (build, expected) in kind.corpus.items():
        with empty_folder() as folder:
            build(folder)
            verdict = judge(kind, folder)
        if verdict.name != ("refused" if expected else "read") or expected not in verdict.detail:
            wrong.append((case, expected, *verdict[:2]))
    assert not wrong


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        folder = os.open(path.parent, os.O_PATH)  # an address has 108 bytes at most, however long the path is
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "pipe": lambda path: os.mkfifo(path),
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KINDS if name != "wire_messages"])
def test_what_is_no_file_is_refused_or_not_looked_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe, a socket, an endless device or a folder in the place of every file of every honest case."""
    kind, wrong = find(name), []
    monkeypatch.setattr(limits, "WALL_SECONDS", 20)
    for case, (build, expected) in kind.corpus.items():
        with empty_folder() as folder:
            build(folder)
            files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and not expected]
        for file in files:
            for special, make in SPECIAL.items():
                with empty_folder() as folder:
                    build(folder)
                    (folder / file).unlink()
                    make(folder / file)
                    verdict = judge(kind, folder)
                if verdict.name not in FINE:
                    wrong.append((case, file, special, *verdict[:2]))
    assert not wrong


def judged(tmp_path: Path, read: Callable[[Path], Any]) -> Verdict:
    (tmp_path / "file").write_bytes(b"content")
    return judge(cast("Kind", SimpleNamespace(read=read)), tmp_path)


def refuse(text: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        raise UsageError(text)

    return read


def write_and_refuse(folder: Path) -> None:
    (folder / "half").write_text("done")
    raise UsageError("file: no")


def fail(folder: Path) -> None:
    raise KeyError("surprise \ud800")


def compute(folder: Path) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("read", "verdict", "detail"),
    [
        (lambda folder: None, "read", ""),
        (refuse("file: no"), "refused", "file: no"),
        (refuse("two\nlines"), "not one short line", "two"),
        (refuse("x" * 700), "not one short line", "xxx"),
        (write_and_refuse, "refused after writing", "file: no"),
        (lambda folder: bytearray(2 * limits.MEMORY_BYTES), "memory", ""),
        (fail, "traceback", "KeyError"),
    ],
)
def test_verdicts(tmp_path: Path, read: Any, verdict: str, detail: str) -> None:
    found = judged(tmp_path, read)
    assert found.name == verdict
    assert detail in found.detail


def test_verdict_of_a_case_that_computes_or_waits_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CPU_SECONDS", 1)
    assert judged(tmp_path, compute).name == "hang"
    monkeypatch.setattr(limits, "WALL_SECONDS", 0.2)
    assert judged(tmp_path, lambda folder: time.sleep(60)).name == "hang"


def test_memory_is_measured(tmp_path: Path) -> None:
    assert 190 * 2**20 < judged(tmp_path, lambda folder: bytearray(200 * 2**20)).grown < 300 * 2**20
