"""What is made from other files is as these make it."""

from __future__ import annotations

import pytest

from tests.regenerate import GENERATED, ROOT, stale


@pytest.mark.parametrize("name", GENERATED)
def test_what_is_made_from_other_files_is_not_stale(name: str) -> None:
    found = [str(path.relative_to(ROOT)) for path in stale(name)]
    assert not found, f"python -m tests.regenerate {name!r}"
