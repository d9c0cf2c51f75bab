"""Whatever is odd is an error row, or a line that names it; the run can be read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.odd import agents, answers, environments, servers
from tests.odd.trial import REFUSED, ROWS, Case, judge
from vlnbench.rollout.executor import close
from vlnbench.rollout.processes import Processes

PLANE, PICTURES = "tests.faulty:plane", "tests.odd.environments:pictures"


class Kept(Processes):
    """Simulators that stay for the next evaluation."""

    def close(self) -> None:
        close(self._agent)
        self._agent = None


@pytest.fixture(scope="module")
def processes() -> Iterator[Kept]:
    kept = Kept(1, preload=PLANE)
    yield kept
    kept.simulators.close()


@pytest.mark.parametrize("name", agents.ODD)
def test_agents(name: str, tmp_path: Path) -> None:
    judge(agents.ODD[name][0], tmp_path / "run", f"tests.odd.agents:{name}", PLANE)


@pytest.mark.parametrize("name", environments.ODD)
def test_environments(name: str, tmp_path: Path) -> None:
    case = environments.ODD[name][0]
    judge(case, tmp_path / "run", case.agent, f"tests.odd.environments:{name}")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (case, _) in agents.ODD.items() if case.ends != REFUSED])
def test_agents_beside_other_simulators(name: str, tmp_path: Path, processes: Kept) -> None:
    judge(agents.ODD[name][0], tmp_path / "run", f"tests.odd.agents:{name}", PLANE, processes)


REFUSALS = ("simulator_escapes", "prepare_endless", "embodiment_none")
"""Of those that end the processes, which take long to start again."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*REFUSALS, *(name for name, (c, _) in environments.ODD.items() if c.ends != REFUSED)]
)
def test_environments_in_processes(name: str, tmp_path: Path, processes: Kept) -> None:
    case, env = environments.ODD[name][0], f"tests.odd.environments:{name}"
    judge(case, tmp_path / "run", case.agent, env, processes)


def _patient(names: Iterable[str], endless: Collection[str]) -> list[Any]:
    """Those without an end are waited for."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in endless)) for name in names]


@pytest.mark.parametrize("name", _patient(servers.ODD, servers.ENDLESS))
def test_servers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLNBENCH_TOKEN", "any")  # or the one of the user would be looked up
    case, talk = servers.ODD[name]
    with servers.served(talk) as address:
        judge(case, tmp_path / "run", address, PLANE, options=servers.options(name))


@pytest.mark.parametrize("asked_before", [False, True], ids=["at_first", "later"])
@pytest.mark.parametrize("name", _patient(answers.ODD, answers.ENDLESS))
def test_answers(name: str, asked_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", answers.KEY)
    monkeypatch.setattr("agents.openai.api._FIRST_WAIT_S", 0.01)
    ends, says, reply = answers.ODD[name]
    with answers.served(reply, honest=asked_before) as url:
        case = Case(REFUSED if ends == ROWS and not asked_before else ends, says)
        judge(case, tmp_path / "run", "openai", PICTURES, options=answers.options(url, name))
    for file in (tmp_path / "run").glob("*"):
        assert answers.KEY not in file.read_text()
