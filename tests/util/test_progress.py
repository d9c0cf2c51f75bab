from __future__ import annotations

import time

import pytest

from vlnbench.util import progress
from vlnbench.util.progress import Progress


def said(capsys: pytest.CaptureFixture[str], at_least: int) -> list[str]:
    lines: list[str] = []
    until = time.monotonic() + 60
    while len(lines) < at_least and time.monotonic() < until:
        time.sleep(0.01)
        lines += capsys.readouterr().err.splitlines()
    return lines


def test_it_says_that_nothing_has_ended_until_something_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FIRST_BEAT_S", 0.01)
    monkeypatch.setattr(progress, "LAST_BEAT_S", 0.02)
    with Progress(waiting="no episode has ended yet") as shown:
        assert all(line.startswith("no episode has ended yet after ") for line in said(capsys, 3))
        shown.update(1, 2, "SR 100 %")
        shown._heart.join(60)
        assert not shown._heart.is_alive()
    assert capsys.readouterr().err.splitlines()[-1] == "1/2, SR 100 %"


def test_it_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    with Progress(waiting="nothing") as shown:
        assert shown._heart.is_alive()
    shown._heart.join(60)
    assert not shown._heart.is_alive()
