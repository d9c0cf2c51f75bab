from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix.conftest import PARTS, Write
from vlnbench.errors import UsageError
from vlnbench.matrix.runner import run_matrix
from vlnbench.matrix.spec import read_matrix
from vlnbench.matrix.statistics.offline import offline_csv
from vlnbench.matrix.table import markdown

OFFLINE = {"val_unseen": {"split": "val_unseen", "tours": 5, "frame_width": 128}}


@pytest.mark.slow
@pytest.mark.usefixtures("faked")
def test_settings_and_what_is_trained_are_scored_on_walks_that_are_collected_once(write: Write) -> None:
    axes = {"tunable_parts": [[PARTS[0]], [PARTS[1]]], "evaluate.repeats": [1, 2]}
    train = {"checkpoint": "streamvln-tiny-base", "trajectories": "sets", "steps": 4}
    path = write(axes=axes, train=train, offline=OFFLINE, references=["blind", "untuned"])
    found = run_matrix(read_matrix(path), Path("work"), Path("results"))
    calls = Path("calls.txt").read_text().splitlines()
    assert calls.count("collect val_unseen") == 1
    assert calls.count("score ") == 3  # of each training once, and what they started from once for both protocols
    assert {row["offline"]["status"] for row in found["rows"]} == {"done"}
    by_name = {row["name"]: row["offline"] for row in found["references"]}
    assert by_name["blind (repeats=1)"] is None
    assert (
        by_name["untuned streamvln-tiny-base (repeats=1)"]["sets"]["val_unseen"]["frames"]["own"]["actions"] == 10
    )
    text = markdown(found)
    assert "## On expert walks" in text
    (line,) = (
        line
        for line in text.splitlines()
        if line.startswith(f"| {PARTS[0].replace('_', chr(92) + '_')}, evaluate.repeats=1 ") and "0.500" in line
    )
    assert [cell.strip() for cell in line.split("|")[2:6]] == ["0.500", "1.500", "50.0", "50.0"]
    lines = offline_csv(found).splitlines()
    assert len(lines) == 1 + (4 + 2) * 2 * 4  # settings and references, frames, scores
    again = Path("again")
    run_matrix(read_matrix(path), again, Path("other"))
    assert Path("calls.txt").read_text().splitlines().count("collect val_unseen") == 1


def test_walks_need_a_split_and_an_expert_who_does_not_err(write: Write) -> None:
    for options in (
        {"tours": 3},
        {"split": "val_seen", "disturbance": 0.1},
        {"split": "val_seen", "dagger": True},
    ):
        with pytest.raises(UsageError, match=r"offline\.x: expected a split, no disturbance and no dagger"):
            read_matrix(write(offline={"x": options}))


def test_without_the_section_nothing_changes(write: Write) -> None:
    """Neither what a matrix is, nor its tables."""
    plain, scored = read_matrix(write()), read_matrix(write(offline=OFFLINE))
    assert plain.key == scored.key
    assert plain.offline == {}
    assert scored.held_out.parent == Path("data/held_out")
    other = read_matrix(write(offline={"val_unseen": {**OFFLINE["val_unseen"], "tours": 6}}))
    assert other.held_out != scored.held_out
