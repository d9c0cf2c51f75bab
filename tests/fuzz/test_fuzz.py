"""Every known case ends as it should, and 200 random ones of each kind are read or refused in one line."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.fuzz import harness
from tests.fuzz.__main__ import KINDS
from vlnbench.errors import UsageError


@pytest.mark.parametrize("kind", KINDS)
def test_200_cases_and_everything_found_so_far(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--what", kind, "--cases", "200", "--corpus"]
    done = subprocess.run([*command, "--keep", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "read " in done.stdout.splitlines()[-1], "some cases are harmless"
    assert "refused " in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_can_be_written_again(kind: str) -> None:
    module = cast("harness.Kind", importlib.import_module(f"tests.fuzz.kinds.{kind}"))

    def contents() -> list[dict[str, bytes]]:
        found = []
        for number in range(3):
            with harness.case(module, kind, number, seed=7) as folder:
                files = (path for path in folder.rglob("*") if path.is_file())
                found.append({str(path.relative_to(folder)): path.read_bytes() for path in files})
        return found

    first = contents()
    assert len(first) == 3
    assert all(a != b for a, b in combinations(first, 2))
    assert contents() == first


def judged(tmp_path: Path, read: Callable[[Path], None]) -> harness.Verdict:
    (tmp_path / "file").write_bytes(b"content")
    kind = cast("harness.Kind", SimpleNamespace(read=read))
    return harness.judge(kind, tmp_path)


def refuse(text: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        raise UsageError(text)

    return read


def write_and_refuse(folder: Path) -> None:
    (folder / "half").write_text("done")
    raise UsageError("file: no")


def allocate(folder: Path) -> None:
    bytearray(2 * harness.MEMORY_BYTES)  # far beyond, as the child may have freed something by then


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
        (allocate, "memory", ""),
        (fail, "traceback", "KeyError"),
    ],
)
def test_verdicts(tmp_path: Path, read: Any, verdict: str, detail: str) -> None:
    found = judged(tmp_path, read)
    assert found.name == verdict
    assert detail in found.detail


def test_verdict_of_a_child_that_computes_or_waits_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "CPU_SECONDS", 1)
    assert judged(tmp_path, compute).name == "hang"
    monkeypatch.setattr(harness, "WALL_SECONDS", 0.2)
    assert judged(tmp_path, lambda folder: time.sleep(60)).name == "hang"


def test_memory_is_measured(tmp_path: Path) -> None:
    def read(folder: Path) -> None:
        bytearray(200 * 2**20)

    assert 190 * 2**20 < judged(tmp_path, read).grown < 300 * 2**20
