from __future__ import annotations

from tests.docs.tree import PAGE, page


def test_the_tree_is_that_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/architecture.md: run `python -m tests.docs.tree`"
