"""Which files a run is of: what is edited makes another run, and what is not an agent's does not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vlnbench.errors import UsageError
from vlnbench.rollout.agents import _code_files, code_digest, load_agent

FILES = {
    "mine.py": "from agents.base import EpisodeAgent\nimport json, helper\nclass Mine(EpisodeAgent):\n"
    "    reads = ('weights.bin',)\n    def act_one(self, seen):\n"
    "        from lab.tools import late\n        return 1\n",
    "helper.py": "from lab import deep\n",
    "lab/__init__.py": "",
    "lab/deep.py": "from . import near\nfrom .tools import late\n",
    "lab/near.py": "",
    "lab/tools/late.py": "from ..near import *\n",  # its folder has no __init__.py
    "lab/not_imported.py": "",
    "weights.bin": "1",
    "other.txt": "",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield tmp_path
    _forget()


def _forget() -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] in ("mine", "helper", "lab")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "edited", ["mine.py", "helper.py", "lab/deep.py", "lab/near.py", "lab/tools/late.py", "weights.bin"]
)
def test_what_is_edited_is_another_agent(folder: Path, edited: str) -> None:
    before = code_digest(load_agent("mine:Mine"))
    (folder / edited).write_text(FILES[edited] + "#\n")
    assert code_digest(load_agent("mine:Mine")) != before


def test_a_file_named_without_a_tuple_is_one_file(folder: Path) -> None:
    (folder / "mine.py").write_text(FILES["mine.py"].replace("('weights.bin',)", "'weights.bin'"))
    before = code_digest(load_agent("mine:Mine"))
    (folder / "weights.bin").write_text("2")
    assert code_digest(load_agent("mine:Mine")) != before


@pytest.mark.parametrize("edited", ["other.txt", "lab/not_imported.py"])
def test_what_it_does_not_use_may_change(folder: Path, edited: str) -> None:
    before = code_digest(load_agent("mine:Mine"))
    (folder / edited).write_text("#\n")
    assert code_digest(load_agent("mine:Mine")) == before


def test_a_file_that_it_reads_and_that_is_not_there_is_a_line(folder: Path) -> None:
    (folder / "weights.bin").unlink()
    with pytest.raises(UsageError, match=r"^weights\.bin: cannot be read"):
        code_digest(load_agent("mine:Mine"))


def test_an_agent_of_ours_is_of_the_ground_floor_too() -> None:
    found = {path.name for path in _code_files(load_agent("blind"))}
    assert {"rules.py", "base.py", "slots.py"} <= found
    assert "interfaces.py" not in found  # of vlnbench, which has a version
