"""The table of released checkpoints says what the published rows and the planner say."""

from __future__ import annotations

import json
import re
import shlex
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT, document
from vlnbench.cli import main
from vlnbench.cli.commands import Command
from vlnbench.cli.selected import parse

PAGE = document("checkpoints.md")
TRIED = ("agents/common", "vlnbench", "tests/agents/common/checkpoints")
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

    @property
    def named(self) -> str:
        """The checkpoint's own name, empty where the table has none."""
        return self.checkpoint.partition("`")[2].partition("`")[0]


def table() -> dict[str, Row]:
    lines = PAGE.read_text(encoding="utf-8").partition("| model |")[2].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[: lines.index("")]]
    return {name: Row(*rest) for name, *rest in cells}


def test_it_has_the_published_scores_and_commands_that_there_are() -> None:
    rows = json.loads((ROOT / "results" / "published.json").read_text())["rows"]
    published = {
        (row["released"]["checkpoint"], row["dataset"]): row
        for row in rows
        if row.get("released") and row["split"] == "val_unseen"
    }
    assert {each.named for each in table().values()} >= {name for name, _ in published}
    for name, row in table().items():
        assert all(row), name
        for dataset, said in (("R2R-CE", row.r2r), ("RxR-CE", row.rxr)):
            known = published.pop((row.named, dataset), None)
            assert (known is None) == (said == "-"), (name, dataset)
            if known is not None:
                assert (known["metrics"]["SR"], known["sensors"]) == (float(said), row.sensors), (name, dataset)
        program, *arguments = shlex.split(row.command.strip("`"))
        assert program == "vlnbench"
        parse(Command, arguments, "")
        given = arguments[arguments.index("--checkpoint") + 1]
        assert not given.startswith("hf:") or row.checkpoint.startswith(f"`{given.removeprefix('hf:')}`")


@pytest.mark.parametrize("name", PLANNED)
def test_it_has_the_planned_sizes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--inference", *PLANNED[name], "--gpus", "1x200GB"]) == 0  # where it fits: no remedies
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
