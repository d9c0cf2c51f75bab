"""The site is built without a warning, holds every page, finds words, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.browser import browser
from tests.docs.pages import ROOT

SEARCH = """(() => {
    const field = document.querySelector("[data-md-component=search-query]");
    field.focus();
    field.value = "unreadable answer";
    field.dispatchEvent(new Event("input", {bubbles: true}));
    field.dispatchEvent(new Event("keyup", {bubbles: true}));
})()"""
FOUND = "Array.from(document.querySelectorAll('.md-search-result__link'), (each) => each.href).join(' ')"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    kept = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_it_holds_every_page_and_what_they_link_to(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / ("index.html" if name == "README.html" else name)).is_file()
    shown = (site / "repository" / "examples" / "custom_agent.py.html").read_text(encoding="utf-8")
    assert "Follower" in shown
    assert (site / "repository" / "results" / "sr_over_time.svg").is_file()
    interfaces = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert all(f'id="vlnbench.interfaces.{name}"' in interfaces for name in ("Agent", "Env", "Observation"))


@pytest.mark.slow
def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?(https?://[^\"\s>]+)", text)
        assert loaded == [], page


@pytest.mark.slow
def test_the_search_finds_words_without_a_server(site: Path) -> None:
    with browser() as tab:
        tab.open(f"file://{site}/how-to/evaluate.html", 1500)
        tab.run(SEARCH)
        until = time.monotonic() + 30
        while not (found := tab.run(FOUND)) and time.monotonic() < until:
            time.sleep(0.1)
        assert "how-to/qwen.html" in found
        assert tab.problems == []
