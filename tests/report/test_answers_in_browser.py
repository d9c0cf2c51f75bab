"""What models said, in a browser: by arrow keys, found by words, and never taken for markup."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import browser
from tests.fakes import PlaneEnv
from tests.report.test_recording import SeeingEnv, Speaker
from tests.runs import write_dataset
from vlnbench.cli import main
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.evaluation.evaluate import Execution, evaluate, make_plan
from vlnbench.report import build
from vlnbench.rollout.executor import Limits
from vlnbench.rollout.inline import Inline

pytestmark = pytest.mark.slow  # starts a browser

LISTED = "[...document.querySelectorAll('#list tbody tr')].map((row) => row.cells[0].textContent)"
NOW = "document.querySelector('.answer').innerText"
SHIFT = "dialog.dispatchEvent(new KeyboardEvent('keydown', {key: 'Arrow%s', shiftKey: true, bubbles: true}))"


def test_keys_search_and_foreign_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "make_env", lambda *_: SeeingEnv())
    protocol, root = get_benchmark("houses-r2r"), write_dataset(tmp_path / "data")
    split = load_split(protocol, "val_unseen", root, allow_partial=True)
    plan = make_plan(protocol, split, "speaker", count=None, seed=0, repeats=1)
    keep = Execution(Limits(answers=True))
    evaluate(plan, Inline(Speaker(), PlaneEnv()), tmp_path / "run", execution=keep)
    assert main(["report", str(tmp_path / "run"), "--data-root", str(root), "--frames", "2"]) == 0
    with browser() as tab:
        tab.open((tmp_path / "run" / "report.html").as_uri(), 1200)
        assert len(tab.run(LISTED)) == 9
        tab.run("update({said: 'UNPARSABLE'})")
        assert tab.run(LISTED) == ["4"]
        tab.run("document.querySelector('#list tbody button').click()")
        said = tab.run(NOW)
        assert "asked at step 2" in said
        assert "<b>go?</b>" in said
        assert "unparsable · no action" in said
        assert tab.run("document.querySelectorAll('dialog b').length") == 0
        assert tab.run("document.querySelector('.frame').src").startswith("data:image/jpeg;base64,")
        tab.press("ArrowRight", 39)
        assert "asked at step 3 · 103 tokens, 2 frames" in tab.run(NOW)
        tab.press("ArrowLeft", 37)
        tab.press("ArrowLeft", 37)
        assert "step 1: ↑" in tab.run(NOW)
        tab.run(SHIFT % "Right")
        assert "asked at step 2" in tab.run(NOW)
        tab.press("End", 35)
        assert tab.run("document.querySelector('.stepper output').textContent").startswith("step 6 of 6")
        tab.run("update({said: 'stop'})")
        assert len(tab.run(LISTED)) == 9
        tab.run("update({said: 'nowhere said'})")
        assert tab.run(LISTED) == []
        assert tab.problems == []
