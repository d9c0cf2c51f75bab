"""A pipe, a socket or an endless device in the place of any honest file is refused at once, or not looked at."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.fuzz import harness
from tests.fuzz.__main__ import KINDS

pytestmark = [
    pytest.mark.slow,  # reads every kind of file some times
    pytest.mark.skipif(sys.platform != "linux", reason="pipes and devices of Linux"),
]


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


SPECIAL: dict[str, Callable[[Path], None]] = {
    "pipe": lambda path: os.mkfifo(path),
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
}


def honest_files(kind: harness.Kind) -> Iterator[tuple[str, Path]]:
    """Every file of every honest case, by the case's name, below the case's folder."""
    for name, (build, expected) in kind.corpus.items():
        if not expected:
            with harness.empty_folder() as folder:
                build(folder)
                yield from [(name, path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "wire_messages"])
def test_what_is_no_file_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = cast("harness.Kind", importlib.import_module(f"tests.fuzz.kinds.{kind}"))
    module.prepare()
    monkeypatch.setattr(harness, "WALL_SECONDS", 20)
    wrong = []
    for case, name in honest_files(module):
        for special, make in SPECIAL.items():
            with harness.empty_folder() as folder:
                module.corpus[case][0](folder)
                (folder / name).unlink()
                make(folder / name)
                verdict = harness.judge(module, folder)
                if verdict.name not in harness.FINE:
                    wrong.append((case, str(name), special, *verdict[:2]))
    assert wrong == []
