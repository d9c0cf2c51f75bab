"""The table of released checkpoints says what the published rows and the planner say."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.docs.pages import ROOT
from vlnbench.cli import main
from vlnbench.cli.commands import Command
from vlnbench.cli.selected import parse

PAGE = ROOT / "docs" / "reference" / "checkpoints.md"
ROWS = {
    "StreamVLN": "streamvln-v1-3",
    "JanusVLN, no extra data": "janusvln-no-extra",
    "JanusVLN": "janusvln",
    "CMA of VLN-CE": "cma-released",
}


def table() -> dict[str, list[str]]:
    lines = PAGE.read_text(encoding="utf-8").partition("| model |")[2].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[: lines.index("")]]
    return {name: rest for name, *rest in cells}


def test_it_has_the_published_scores_and_commands_that_there_are() -> None:
    published = {row["id"]: row for row in json.loads((ROOT / "results" / "published.json").read_text())["rows"]}
    assert table().keys() == ROWS.keys()
    for name, (_, command, _, sensors, r2r, rxr, _) in table().items():
        for dataset, said in (("r2r", r2r), ("rxr", rxr)):
            if said != "-":
                row = published[f"{ROWS[name]}-{dataset}-val-unseen"]
                assert (row["metrics"]["SR"], row["sensors"]) == (float(said), sensors), (name, dataset)
        program, *arguments = shlex.split(command.strip("`"))
        assert program == "vlnbench"
        parse(Command, arguments, "")


@pytest.mark.parametrize("name", ["StreamVLN", "JanusVLN"])
def test_it_has_the_planned_memory(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, parameters, _, _, _, memory = table()[name]
    assert main(["plan", "--inference", "--agent", name.lower()]) == 0
    printed = capsys.readouterr().out
    assert f"peak: {memory} GB" in printed
    assert f"{parameters}." in printed or f"{float(parameters.replace(',', '')) - 0.2:,.1f} M" in printed
