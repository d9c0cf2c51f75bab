"""Distributions made up in a folder on the import path: what they add, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import make_episode
from vlnbench.cli import main
from vlnbench.data.benchmarks import BENCHMARKS, every_benchmark, get_benchmark
from vlnbench.errors import UsageError
from vlnbench.interfaces import Observation
from vlnbench.rollout.agents import load_agent
from vlnbench.rollout.env_names import find_env
from vlnbench.training.family.find import every_family, find_family, get_family
from vlnbench.util import plugins as module
from vlnbench.util.plugins import KINDS, plugins, readable
from vlnbench.util.trackers import parse_trackers

GOOD = """
from dataclasses import dataclass, replace
from agents.base import EpisodeAgent
from agents.streamvln.options import FAMILY as STREAMVLN
from vlnbench.data.benchmarks import VLM_BODY, Benchmark
from vlnbench.interfaces import Action
from vlnbench.rollout.agent_options import AgentOptions


@dataclass(frozen=True, kw_only=True)
class Options(AgentOptions):
    patience: int = 3


class Patient(EpisodeAgent):
    '''Waits.'''
    sensors = frozenset()
    options_type = Options

    def __init__(self, options):
        super().__init__()
        self.options = options

    def act_one(self, observation):
        return Action.STOP


BENCHMARK = Benchmark("mine", 1, "my houses", "r2r", ("my_r2r",), {"val_unseen": None}, VLM_BODY)
FAMILY = replace(STREAMVLN, name="my-family", recognizes=lambda path: False)
NOT_NAMED_SO = FAMILY


class Seen:
    '''Sees.'''


class Follows:
    '''Follows.'''
"""

NAMES = """
[vlnbench.agents]
patient = {0}:Patient
[vlnbench.benchmarks]
mine = {0}:BENCHMARK
[vlnbench.families]
my-family = {0}:FAMILY
[vlnbench.envs]
seen = {0}:Seen
[vlnbench.trackers]
follows = {0}:Follows
[vlnbench.rewards]
praise = {0}:Follows
"""


class Place:
    """A folder on the import path, into which distributions are put."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, entry_points: str, code: str = GOOD) -> None:
        info = self.root / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points.format(name))
        (self.root / f"{name}.py").write_text(code)
        module._scan.cache_clear()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.setattr(module, "_warned", set())
    monkeypatch.syspath_prepend(str(tmp_path))
    return Place(tmp_path)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_what_a_distribution_adds_is_found_by_name(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.put("adds", NAMES)
    agent = load_agent("patient")
    agent.reset(0, make_episode(1), seed=0)
    assert agent.act({0: Observation("Go.", 0)}) == {0: 0}
    assert get_benchmark("mine").dataset_folders == ("my_r2r",)
    assert [each.name for each in every_benchmark()] == [*BENCHMARKS, "mine"]
    assert get_family("my-family").name == "my-family"
    assert "my-family" in [each.name for each in every_family()]
    assert find_env("seen") == "adds:Seen"
    assert parse_trackers(["follows"]) == ("adds:Follows",)
    (reward,) = plugins("rewards", ()).values()
    assert (reward.name, reward.distribution, reward.load().__name__) == ("praise", "adds 1.0", "Follows")
    assert lines(capsys) == []


def test_the_list_says_where_each_comes_from(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.put("listed", NAMES)
    assert main(["list"]) == 0
    printed = capsys.readouterr().out.splitlines()
    mine = {line.split()[0]: line for line in printed if line.endswith("listed 1.0")}
    assert set(mine) == {"patient", "mine", "my-family", "seen", "follows", "praise"}
    assert "Waits." in mine["patient"]
    own = [line.split()[0] for line in printed if line.rstrip().endswith(" vlnbench")]
    assert {"streamvln-tiny", "houses-r2r", "vlnce", "habitat", "wandb"} <= set(own)


def test_an_agent_has_its_options_on_the_command_line(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.put("optional", NAMES)
    with pytest.raises(SystemExit):
        main(["eval", "--agent", "patient", "--help"])
    assert "--patience" in capsys.readouterr().out
    assert main(["eval", "--agent", "random", "--patience", "3"]) == 2
    assert "--patience is an option of patient" in capsys.readouterr().err


def test_names_of_vlnbench_cannot_be_taken(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.put(
        "thief", "[vlnbench.agents]\nblind = {0}:Patient\n[vlnbench.benchmarks]\nhouses-r2r = {0}:BENCHMARK\n"
    )
    assert type(load_agent("blind")).__name__ == "BlindAgent"
    assert get_benchmark("houses-r2r") is BENCHMARKS["houses-r2r"]
    assert main(["list"]) == 0
    warned = [line for line in lines(capsys) if "thief 1.0" in line]
    assert warned == [
        f"warning: {kind} '{name}' of thief 1.0: left out, vlnbench has one of that name"
        for kind, name in (("agent", "blind"), ("benchmark", "houses-r2r"))
    ]


def test_a_name_of_two_distributions_is_of_neither(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.put("first", "[vlnbench.agents]\npatient = {0}:Patient\n")
    place.put("second", "[vlnbench.agents]\npatient = {0}:Patient\n")
    with pytest.raises(UsageError, match="unknown agent 'patient'"):
        load_agent("patient")
    (line,) = lines(capsys)
    assert line == (
        "warning: agent 'patient' of second 1.0: left out, first 1.0 has one of that name; uninstall one of them"
    )


BROKEN = {
    "raises": (
        "x = {0}:Patient",
        "1 / 0",
        "cannot be imported: ZeroDivisionError: division by zero (raises.py:1)",
    ),
    "exits": ("x = {0}:Patient", "raise SystemExit(3)", "raises SystemExit: 3"),
    "syntax": ("x = {0}:Patient", "def", "cannot be imported: SyntaxError: invalid syntax (syntax.py:1)"),
    "without": ("x = {0}:Absent", "", "has no 'Absent'"),
    "needs": (
        "x = {0}:Patient",
        "import not_installed",
        "ModuleNotFoundError: No module named 'not_installed' (needs.py:1)",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_one_costs_a_line_that_names_its_distribution(
    place: Place, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    entry, code, reason = BROKEN[name]
    place.put(name, f"[vlnbench.agents]\n{entry}\n", code)
    assert main(["list"]) == 0
    (line,) = lines(capsys)
    assert line.startswith(f"warning: agent 'x' of {name} 1.0: ")
    assert reason in line
    assert main(["eval", "--agent", "x"]) == 2
    (line,) = lines(capsys)
    assert line.startswith(f"vlnbench: error: agent 'x' of {name} 1.0: ")
    with pytest.raises(SystemExit):  # looked for among the options of every agent, that one left out
        main(["eval", "--agent", "random", "--nobodys"])


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ("[vlnbench.agents]\nx\n", "entry_points.txt cannot be read"),
        ("[vlnbench.agents]\nx = no import string\n", "expected package.module:OBJECT"),
        ("[vlnbench.agents]\na:b = {0}:Patient\n", "expected a name of letters, digits"),
        ("[vlnbench.agents]\nx = {0}\n", "expected package.module:OBJECT"),
    ],
)
def test_entries_that_are_none_cost_a_line(
    place: Place, capsys: pytest.CaptureFixture[str], entries: str, reason: str
) -> None:
    place.put("unread", entries)
    assert plugins("agents", ()) == {}
    assert plugins("agents", ()) == {}
    (line,) = lines(capsys)
    assert "unread" in line
    assert reason in line


def test_an_object_of_another_kind_or_name_costs_a_line(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.put(
        "wrong", "[vlnbench.families]\nother = {0}:NOT_NAMED_SO\n[vlnbench.benchmarks]\nother = {0}:FAMILY\n"
    )
    assert "other" not in {*(each.name for each in every_family()), *(each.name for each in every_benchmark())}
    assert [line.partition(": expected a ")[2] for line in lines(capsys)] == [
        "vlnbench.training.family.spec.FamilySpec of the name 'other'",
        "vlnbench.data.benchmarks.Benchmark",
    ]
    for get in (get_family, get_benchmark):
        with pytest.raises(UsageError, match=r"'other' of wrong 1\.0: expected"):
            get("other")
    assert find_family("", "streamvln-tiny")[0].name == "streamvln"


def test_what_a_family_cannot_say_of_a_checkpoint_stops_nobody(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place.put("unsure", NAMES, GOOD.replace("lambda path: False", "lambda path: 1 / 0"))
    with pytest.raises(UsageError, match="no checkpoint of a family known here"):
        find_family("", str(tmp_path))
    (line,) = lines(capsys)
    assert line.startswith("warning: family 'my-family' of unsure 1.0: cannot say whether")


def test_binary_junk_is_no_entry_point(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.put("junk", "")
    (place.root / "junk-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe[vlnbench.agents]")
    module._scan.cache_clear()
    assert all(plugins(group, ()) == {} for group in KINDS)
    (line,) = lines(capsys)
    assert "cannot be read" in line


def test_the_first_on_the_import_path_counts(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place.put("twin", "[vlnbench.rewards]\npraise = {0}:Follows\n")
    later = tmp_path / "later"
    later.mkdir()
    monkeypatch.setattr("sys.path", [*__import__("sys").path, str(later)])
    Place(later).put("twin", "[vlnbench.rewards]\nblame = {0}:Follows\n")
    assert list(readable("rewards", (), lambda each: each.load())) == ["praise"]
    assert lines(capsys) == []
