from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal on which every table is in one piece; processes of pytest-xdist have one of 80 columns."""
    monkeypatch.setenv("COLUMNS", "1000")
