"""An objective that this project does not know: its options, its plan and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agents.streamvln.options import StreamVLNPlanning
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.training.family.find import every_family
from vlnbench.training.memory.objective import StepMemory
from vlnbench.training.memory.plan import plan
from vlnbench.training.memory.trace import Trace
from vlnbench.training.memory.zero import Sharding, Usage
from vlnbench.training.objectives import OBJECTIVES, get_objective
from vlnbench.training.objectives.spec import ObjectiveSpec
from vlnbench.training.objectives.supervised import Supervised
from vlnbench.util.bounds import Count

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, kw_only=True)
class OwnPlanning:
    teachers: Count = 1
    """Networks that are asked beside."""


class OwnMemory(StepMemory):
    def moments(self, found: Iterable[Usage], trace: Trace, sharding: Sharding, options: Any) -> Iterator[Usage]:
        for usage in found:
            yield replace(usage, reference=options.teachers * trace.parameters * sharding.weight_bytes)

    def rows(self, usage: Usage) -> list[tuple[str, int]]:
        return [("teachers", usage.reference)]


class Own(Supervised):
    """Nothing but a name of its own."""


OWN = ObjectiveSpec("own", f"{__name__}:Own", OwnPlanning, OwnPlanning, memory=f"{__name__}:OwnMemory")
UNPLANNED = ObjectiveSpec("unplanned", f"{__name__}:Own")
NAME = f"{__name__}:OWN"


def run(*arguments: str) -> int:
    return main(["plan", "--model", "preset:streamvln-tiny", "--gpus", "1x8GB", *arguments])


def test_an_objective_of_one_s_own_is_planned_with_its_own_memory(capsys: pytest.CaptureFixture[str]) -> None:
    kind: Any = OWN.plan_options(StreamVLNPlanning)
    common: dict[str, Any] = {"model": "preset:streamvln-tiny", "gpus": "1x8GB"}
    plain, held = plan(StreamVLNPlanning(**common)), plan(kind(**common, objective=NAME, teachers=3))
    assert held.usage.static == plain.usage.static + 3 * 2 * sum(plain.parts.values())
    assert run("--objective", NAME, "--teachers", "2") == 0
    assert "teachers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--objective", f"{__name__}:UNPLANNED"),
            "--objective unplanned: does not say what memory its steps take",
        ),
        (("--objective", f"{__name__}:Own"), "expected a vlnbench.training.objectives.spec.ObjectiveSpec"),
        (("--objective", NAME, "--teachers", "0"), "--teachers 0: expected 1 or more"),
        (("--objective", NAME, "--beta", "1"), "leave out --beta (--beta is an option of grpo)"),
        (("--group", "4"), "objective 'supervised' takes other options: leave out --group"),
        (("--objective", "grop"), "unknown objective 'grop': did you mean 'grpo'"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_options_that_are_not_the_objective_s_are_refused() -> None:
    with pytest.raises(UsageError, match="--objective own: the options are not its own"):
        plan(StreamVLNPlanning(model="preset:streamvln-tiny", objective=NAME))


@pytest.mark.parametrize("family", every_family(), ids=lambda family: family.name)
@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_the_defaults_of_every_family_and_objective_go_together(family: Any, processes: int) -> None:
    for name in OBJECTIVES:
        kind: Any = get_objective(name).train_options(family.training)
        needed = {"rollouts": "episodes"} if "rollouts" in kind.__dataclass_fields__ else {}
        made = kind(checkpoint="", out=Path(), objective=name, **needed)
        made.check(processes)
        assert made.batch == family.training(checkpoint="", out=Path()).batch, "a family's defaults stay its own"


def test_no_module_outside_its_folder_knows_an_objective_by_name() -> None:
    named = re.compile(r"GRPO|[\"']grpo[\"']|objective ==|objective !=|objectives\.grpo")
    for folder in ("vlnbench", "agents"):
        for path in (ROOT / folder).rglob("*.py"):
            if (ROOT / "vlnbench/training/objectives") not in path.parents:
                assert not named.search(path.read_text()), path
