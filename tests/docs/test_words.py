"""The documents stay short: what is said twice, or to nobody, is cut before a page is added."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, prose

DOCS = ROOT / "docs"
MOST = 22_000
"""Words of all pages together."""
MOST_OF_A_HOW_TO = 800
START = 6
"""Pages of the first part, the overview among them."""
_MADE = re.compile(r"<!-- \w+: made by.*?<!-- end of \w+ -->", re.DOTALL)
_TARGETS, _CODE, _WORD = re.compile(r"\]\([^)]*\)"), re.compile(r"`[^`]*`"), re.compile(r"[^\W\d_]{2}")


def words(page: Path) -> int:
    """Words of text and tables: not of code, of addresses, nor of what is made from other files."""
    text = page.read_text(encoding="utf-8")
    if "<!-- made by `python -m" in text:
        return 0
    text = _CODE.sub("", _TARGETS.sub("]", _MADE.sub("", prose(page))))
    return sum(bool(_WORD.search(each)) for each in text.split())


def test_all_pages_together() -> None:
    found = {page.relative_to(DOCS).as_posix(): words(page) for page in DOCS.rglob("*.md")}
    assert sum(found.values()) <= MOST, sorted(found.items(), key=lambda each: -each[1])[:10]


@pytest.mark.parametrize("page", sorted((DOCS / "how-to").glob("*.md")), ids=lambda page: page.stem)
def test_a_how_to_is_short_and_opens_with_a_command(page: Path) -> None:
    assert words(page) <= MOST_OF_A_HOW_TO
    title, _, question, _, opening, _ = page.read_text(encoding="utf-8").split("\n", 5)
    assert title.startswith("# ")
    assert question.startswith("*")
    assert opening.startswith("```")


def test_the_first_part_is_small() -> None:
    assert len(list((DOCS / "start").glob("*.md"))) + 1 <= START
