"""Nothing in a run's text can become more than text where the page's own scripts put it in."""

from __future__ import annotations

import re

import pytest

from vlnbench.report.page import SCRIPTS, asset

SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc|\beval\b|"
    r"new Function|set(Timeout|Interval)\(\s*[\"'`]|setAttribute\(\s*[\"'`](on|href|src|style)|"
    r"\.(href|action)\s*="
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_put_text_into_the_page_as_text_alone(name: str) -> None:
    assert not SINKS.search(asset(name))


def test_the_pattern_finds_what_it_is_for() -> None:
    for line in ("a.innerHTML = b", "a.setAttribute('onclick', b)", "eval(b)", "link.href = b", 'setTimeout("x")'):
        assert SINKS.search(line)
    for line in ("a.textContent = b", "a.setAttribute('title', b)", "evaluate(b)"):
        assert not SINKS.search(line)
