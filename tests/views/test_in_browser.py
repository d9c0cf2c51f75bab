"""The page as a reader has it: in a headless Chromium at three widths, by pointer and by keyboard."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from agents.scripted import GroundTruthReplayAgent, RandomAgent, StopAgent
from tests.browser import Tab, browser
from tests.runs import record, write_dataset
from tests.views.test_view import training
from vlnbench.cli import main
from vlnbench.views.serve import make_server

pytestmark = pytest.mark.slow
RESULTS = Path(__file__).parents[2] / "results"
COLUMN = "[...document.querySelectorAll('#runs tbody th')].map((cell) => cell.firstChild.textContent)"


def wait(tab: Tab, code: str) -> None:
    deadline = time.monotonic() + 30
    while not tab.run(code):
        assert time.monotonic() < deadline, code
        time.sleep(0.1)


def test_tables_plots_and_keys_work_at_every_width(tmp_path: Path) -> None:
    training(tmp_path / "training", 30)
    arguments = ["view", str(RESULTS), str(tmp_path / "training"), "--data-root", str(tmp_path / "nowhere")]
    assert main([*arguments, "--out", str(tmp_path / "view.html")]) == 0
    with browser() as tab:
        for width in (1280, 768, 390):
            for dark in (False, True):
                tab.open((tmp_path / "view.html").as_uri(), width, dark)
                assert tab.run("document.documentElement.scrollWidth") <= width
                background = tab.run("getComputedStyle(document.body).backgroundColor")
                assert (background == "rgb(20, 23, 27)") is dark
                ids = "[...document.querySelectorAll('main > section')].map((each) => each.id)"
                expected = ["runs", "versus", "episodes", "pareto", "trainings", "matrices", "board"]
                assert tab.run(ids) == expected
        rules = ["seq2seq-tiny", "read-and-look", "blind", "random"]
        learned = ["streamvln-tiny", "cma-tiny"]
        shown = [name.partition(" (")[0] for name in tab.run(COLUMN)]
        assert shown == [*learned, "shortest-path", *learned, *rules]
        sort = "[...document.querySelectorAll('#runs thead button')].find((each) => each.textContent == 'SR (%)')"
        for _ in range(2):
            tab.run(f"{sort}.click()")
        assert tab.run(COLUMN)[0].startswith("cma-tiny"), "the lesser of the first split"
        assert tab.run(f"{sort}.closest('th').getAttribute('aria-sort')") == "ascending"
        dots = "document.querySelectorAll('#pareto circle').length"
        assert tab.run(dots) >= 20
        tab.run("document.querySelector('#pareto circle').focus()")
        assert "SR (%)" in tab.run("document.querySelector('#pareto figcaption').textContent")
        title = "document.querySelector('.episode h3').textContent"
        assert tab.run(title) == "Episode 1 in s0_train_000"
        tab.run("document.querySelector('.dots tbody button').focus()")
        tab.press("ArrowRight", 39)
        assert tab.run(title).startswith("Episode 2 ")
        assert tab.run("document.querySelectorAll('.way svg polyline').length") >= 5
        assert tab.run("document.querySelectorAll('#trainings polyline').length") == 1
        assert tab.problems == []


def test_the_live_page_grows_without_being_loaded_again(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "data")
    runs = tmp_path / "runs"
    record(root, GroundTruthReplayAgent(), runs / "replay")
    server, address = make_server([runs], root, 0)
    with server, browser() as tab:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            tab.open(address, 1280)
            assert len(tab.run(COLUMN)) == 1
            tab.run("window.kept = true")
            record(root, RandomAgent(), runs / "random")
            wait(tab, f"{COLUMN}.length == 2")
            record(root, StopAgent(), runs / "stop")
            wait(tab, f"{COLUMN}.length == 3")
            assert tab.run("window.kept")
            assert tab.run("document.getElementById('live').textContent") == "live"
        finally:
            server.shutdown()
            server.server_close()
        wait(tab, "document.getElementById('live').textContent == 'the server has gone'")
        assert [each for each in tab.problems if "ERR_CONNECTION_REFUSED" not in each] == []
