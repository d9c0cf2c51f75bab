"""docs/reference/limits.md says what the code enforces."""

from __future__ import annotations

import pytest

from envs.embedded import limits
from tests.docs.pages import document

PAGE = document("limits.md").read_text("utf-8")
CONSTANTS = {name: value for name, value in vars(limits).items() if name.isupper()}
WORDS = {
    "MAX_GLB_BYTES": "4 GiB",
    "MAX_JSON_BYTES": "256 MiB",
    "MAX_COORDINATE_M": "1,000 km",
    "MAX_NAVMESH_M": "10 km",
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_every_limit_is_documented_with_its_value(name: str) -> None:
    (row,) = (line for line in PAGE.splitlines() if f"`{name}`" in line)
    assert WORDS.get(name, f"{CONSTANTS[name]:,}") in row


def test_allowance() -> None:
    assert limits.allowance(100, 10, 4, 1000) == 35
    assert limits.allowance(100, 10, 1 / 16, 1000) == 1000
