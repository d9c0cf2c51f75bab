from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.matrix.conftest import Write
from vlnbench.errors import UsageError
from vlnbench.matrix.runner import run_matrix
from vlnbench.matrix.sheet import main_sheet
from vlnbench.matrix.spec import read_matrix
from vlnbench.matrix.table import markdown
from vlnbench.matrix.work.stages import stages_of
from vlnbench.util.tables.sheet import written

TRAIN = {"checkpoint": "streamvln-tiny-base", "trajectories": "sets", "steps": 4}


def names(path: Path) -> list[str]:
    return [each.name for each in read_matrix(path).references]


def test_without_the_section_there_are_rules_and_what_is_trained(write: Write) -> None:
    found = read_matrix(write(references=None, train=TRAIN, evaluate={"episodes": 7, "splits": ["val_seen"]}))
    expected = ["random", "blind", "read-and-look", "shortest-path", "untuned streamvln-tiny-base"]
    assert [each.name for each in found.references] == expected
    command = " ".join(stages_of(found, Path("work"), found.references[1]).evaluations["val_seen"].command)
    assert "eval --agent=blind" in command
    assert "--episodes=7 --split=val_seen" in command
    assert "--checkpoint" not in command
    untuned = " ".join(stages_of(found, Path("work"), found.references[-1]).evaluations["val_seen"].command)
    assert "--agent=streamvln" in untuned
    assert "--checkpoint=streamvln-tiny-base" in untuned


def test_random_weights_are_no_reference(write: Write) -> None:
    assert names(write(references=["untuned"])) == []
    assert names(write(references=[])) == []


def test_every_protocol_has_its_own(write: Write) -> None:
    """What changes no row makes no other reference."""
    axes = {"tunable_parts": [["mm_mlp_adapter"]], "evaluate.episodes": [5, 9], "evaluate.envs": [1, 2]}
    path = write(references=["blind"], axes=axes)
    assert names(path) == ["blind (episodes=5)", "blind (episodes=9)"]
    first, second = read_matrix(path).references
    assert first.eval_key("val_seen") != second.eval_key("val_seen")
    assert first.eval_key("val_seen") != first.eval_key("val_unseen")


def test_an_agent_may_have_options_and_a_label(write: Write) -> None:
    entry = {"label": "shipped", "agent": "streamvln", "checkpoint": "streamvln-tiny", "max_new_tokens": 9}
    (found,) = read_matrix(write(references=[entry])).references
    assert found.name == "shipped"
    assert (found.evaluate["checkpoint"], found.evaluate["max_new_tokens"]) == (Path("streamvln-tiny"), 9)


def test_a_reference_may_be_told_what_the_settings_are_not(write: Write) -> None:
    own = {"label": "other text", "agent": "streamvln", "checkpoint": "streamvln-tiny", "told": "other"}
    shown = {"label": "gray", "agent": "streamvln", "checkpoint": "streamvln-tiny", "frames": "gray"}
    matrix = read_matrix(write(references=[own, shown], train=TRAIN, evaluate={"splits": ["val_seen"]}))
    commands = [
        stages_of(matrix, Path("work"), each).evaluations["val_seen"].command for each in matrix.references
    ]
    assert ["--told=other" in each for each in commands] == [True, False]
    assert ["--frames=gray" in each for each in commands] == [False, True]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("blind", "references: expected a list of agents"),
        (["blnd"], "entry 1: unknown agent 'blnd'"),
        ([3], "entry 1: expected a mapping"),
        ([{"label": "x"}], "entry 1: expected the name of an agent"),
        ([{"agent": "blind", "episodes": 3}], "entry 1: unknown option 'episodes'"),
    ],
)
def test_what_is_no_reference_is_refused(write: Write, entries: Any, message: str) -> None:
    with pytest.raises(UsageError) as error:
        read_matrix(write(references=entries))
    assert message in str(error.value)


@pytest.mark.slow
@pytest.mark.usefixtures("faked")
def test_references_are_evaluated_once_and_stand_in_every_table(write: Write) -> None:
    """Added to a matrix that is done, they are all that runs."""
    evaluate = {"splits": ["val_seen"]}
    run_matrix(read_matrix(write(evaluate=evaluate)), Path("work"), Path("results"))
    Path("calls.txt").unlink()
    path = write(evaluate=evaluate, references=["blind", "random"])
    for _ in range(2):
        found = run_matrix(read_matrix(path), Path("work"), Path("results"))
    assert Path("calls.txt").read_text().splitlines() == ["eval val_seen"] * 2
    assert [(row["name"], row["status"]) for row in found["references"]] == [("blind", "done"), ("random", "done")]
    lines = [line for line in written(main_sheet(found), "csv").splitlines() if ",reference," in line]
    assert len(lines) == 2
    assert "0.55" in lines[0]  # as the fake has it for an agent of five letters


def test_a_reference_stands_in_the_table_with_its_results() -> None:
    from tests.matrix.documents import make_document, result

    document = make_document({"data": ["a", "b"]})
    row = {"name": "blind", "status": "done", "reason": None, "tail": [], "seconds": {"val_seen": 3.0}}
    document["references"] = [{**row, "results": {"val_seen": result(0.5), "val_unseen": None}}]
    text = markdown(document)
    (line,) = (line for line in text.splitlines() if "reference: blind" in line)
    assert "50.0 \\[44.0, 56.0\\]" in line
    assert "## Beside references" in text
    assert "| blind" in text
