"""The table of released checkpoints says what the published rows and the planner say."""

from __future__ import annotations

import json
import re
import shlex
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT
from vlnbench.cli import main
from vlnbench.cli.commands import Command
from vlnbench.cli.selected import parse

PAGE = ROOT / "docs" / "reference" / "checkpoints.md"
TRIED = ("agents/common", "vlnbench", "tests/agents/common/checkpoints")
ROWS = {
    "StreamVLN v1-3": "streamvln-v1-3",
    "StreamVLN, July 2025": "streamvln-paper",
    "JanusVLN, no extra data": "janusvln-no-extra",
    "JanusVLN": "janusvln",
    "NaVILA": "navila",
    "Uni-NaVid": "uni-navid-released",
    "CMA of VLN-CE": "cma-released",
}
"""Rows of results/published.json by the models whose SR is known."""
PLANNED = {
    "StreamVLN v1-3": ["--agent", "streamvln"],
    "JanusVLN": ["--agent", "janusvln"],
    "NaVILA": ["--agent", "navila"],
    "Uni-NaVid": ["--agent", "uninavid"],
    "Qwen2.5-VL 3B, not trained to navigate": ["--agent", "qwen_vl", "--model", "qwen2.5-vl-3b"],
    "Qwen2.5-VL 7B, not trained to navigate": ["--agent", "qwen_vl", "--model", "qwen2.5-vl-7b"],
}


class Row(NamedTuple):
    checkpoint: str
    license: str
    size: str
    sensors: str
    r2r: str
    rxr: str
    memory: str
    command: str


def table() -> dict[str, Row]:
    lines = PAGE.read_text(encoding="utf-8").partition("| model |")[2].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[: lines.index("")]]
    return {name: Row(*rest) for name, *rest in cells}


def test_it_has_the_published_scores_and_commands_that_there_are() -> None:
    published = {row["id"]: row for row in json.loads((ROOT / "results" / "published.json").read_text())["rows"]}
    assert table().keys() >= ROWS.keys()
    for name, row in table().items():
        assert all(row), name
        for dataset, said in (("r2r", row.r2r), ("rxr", row.rxr)):
            if said != "-":
                known = published[f"{ROWS[name]}-{dataset}-val-unseen"]
                assert (known["metrics"]["SR"], known["sensors"]) == (float(said), row.sensors), (name, dataset)
        program, *arguments = shlex.split(row.command.strip("`"))
        assert program == "vlnbench"
        parse(Command, arguments, "")
        given = arguments[arguments.index("--checkpoint") + 1]
        assert not given.startswith("hf:") or row.checkpoint.startswith(f"`{given.removeprefix('hf:')}`")


@pytest.mark.parametrize("name", PLANNED)
def test_it_has_the_planned_sizes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--inference", *PLANNED[name]]) == 0
    printed = capsys.readouterr().out
    alike = [row for each, row in table().items() if each.partition(",")[0] == name.partition(",")[0]]
    for row in alike:
        assert f"peak: {row.memory} GB" in printed
        assert re.search(rf"^weights +{row.size} ", printed, re.MULTILINE)


def test_every_kind_of_folder_is_tried() -> None:
    """Each word in backquotes of the table of folders is a name that the code knows, or a part of a name."""
    text = "".join(path.read_text(encoding="utf-8") for folder in TRIED for path in (ROOT / folder).rglob("*.py"))
    rows = PAGE.read_text(encoding="utf-8").partition("| what lies there |")[2].partition("\n\n")[0]
    words = [word.strip("._*") for row in rows.splitlines()[2:] for word in re.findall(r"`([^`]+)`", row)]
    assert len(words) > 20
    assert [word for word in words if word and word not in text] == []
