"""The programs that were published with models: planned beside vlnbench's trainer, and beside what people saw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agents.streamvln.options import StreamVLNPlanning
from tests.docs.pages import document
from tests.training.memory.observations import SEEN, observations_table
from vlnbench.cli import main
from vlnbench.training.memory.plan import plan

PAGE = document("planned_memory.md")


def test_the_published_loss_takes_logits_at_every_position(capsys: pytest.CaptureFixture[str]) -> None:
    own = StreamVLNPlanning(tunable_parts=("mm_mlp_adapter",), gpus="2x80GB")
    mine, published = plan(own), plan(replace(own, as_published=True))
    assert published.usage.moment == "loss"
    assert published.usage.logits == 2 * mine.tokens * 152_064 * 18
    assert published.usage.static == mine.usage.static
    assert mine.peak < published.peak <= published.high
    assert main(["plan", "--model", "preset:streamvln-tiny", "--gpus", "2x24GB", "--as-published"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("the published program (StreamVLN's streamvln_train.py with zero2.json), not")
    assert "GB per GPU" in shown


def test_of_other_families_no_published_program_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--family", "navila", "--model", "preset:navila-tiny", "--as-published"]) == 2
    assert "--as-published: not known of the family navila" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.slow
def test_plans_agree_with_what_people_saw_and_the_page_shows_both() -> None:
    page = PAGE.read_text()
    for line in observations_table().splitlines()[2:]:
        cells = (cell.strip() for cell in line.strip("|").split("|"))
        assert f"| {' | '.join(cells)} |\n" in page
    disagree = [each.what for each in SEEN if not each.agrees]
    assert disagree == ["JanusVLN, 8 x 80 GB, ZeRO 2 (a fork)"]
    promised = [each for each in SEEN if not each.runs and each.plan.fits == "yes"]
    assert len(promised) == 1
