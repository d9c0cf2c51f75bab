"""Who runs tasks: the one interface behind which an agent and its simulators are, wherever they live.

Makers: `inline` (one environment in this process), `processes` (many simulators, one agent), `replicas` (several
agents with simulators of their own, here or on a Ray cluster). Whoever has one cannot tell which it is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from vlnbench.interfaces import Agent, Env, Episode, Sensor
from vlnbench.rollout import said
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.agents import AgentFacts
from vlnbench.rollout.episode import Outcome, Task
from vlnbench.util.loading import describe
from vlnbench.util.measure import highest
from vlnbench.util.progress import StepProgress, say


@dataclass(frozen=True, slots=True)
class EnvSetup:
    """How environments are made.

    factory: import string of what makes an `Env` from `arguments`. sensors: which observations the agent gets.
    needs: paths that must exist wherever an environment is made.
    """

    factory: str
    arguments: tuple[Any, ...]
    sensors: frozenset[Sensor]
    needs: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """max_batch: episodes that an agent acts on at once, at most; None: as many as it is fastest with. timeout_s:
    how long a simulator or an agent may take for one answer. answers: keep what the agent's model says."""

    max_batch: int | None = 1
    timeout_s: float = 300.0
    answers: bool = False


NO_BATCH = Limits()


@dataclass(slots=True)
class Timings:
    """Who has been at work: agents, simulators of all of them, and the seconds in which an agent had nothing to do
    but wait for simulators, added up over agents. shortages: lines about GPU memory that did not suffice. memory:
    peaks of agents on GPUs (`measure.VramPeaks`) by their number, since their processes began."""

    n_agents: int
    n_simulators: int
    waited_s: float = 0.0
    shortages: list[str] = field(default_factory=list)
    memory: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def take_in(self, agent: int, peaks: Mapping[str, Any] | None) -> None:
        """Peaks of an agent's process, which may be another than the one before."""
        if peaks is not None:
            self.memory[agent] = highest(self.memory.get(agent, {}), peaks)


@runtime_checkable
class Executor(Protocol):
    """An agent, or several alike, with simulators. Use as a context manager.

    Call `load`, `set_up` and `check`, in this order, then `run`, which may be called again. `agent` is known after
    `load` and `simulator` after `set_up`. Every call raises UsageError for what the user can mend, and RunError if
    agents or simulators cannot be used.
    """

    @property
    def agent(self) -> AgentFacts:
        """What is to be known of the agent; there after `load`."""
        ...

    @property
    def simulator(self) -> str:
        """Name of the simulator with its version; there after `set_up`."""
        ...

    def load(self, name: str, options: AgentOptions) -> AgentFacts:
        """Make the agent (see `load_agent`) and return what is to be known of it."""
        ...

    def set_up(self, setup: EnvSetup) -> None:
        """Make environments ready for use, with progress if that takes long. May be called again between runs."""
        ...

    def check(self, episodes: Sequence[Episode]) -> None:
        """As `Env.check`."""
        ...

    def run(self, tasks: Iterable[Task], limits: Limits = ...) -> Generator[Outcome, None, None]:
        """Run each task once; outcomes in the order in which they end.

        An exception, a crash or a hang costs the tasks that it hit, whose outcomes say so. Close the generator if
        it is not run to its end.
        """
        ...

    def remarks(self) -> str:
        """What the agent has to say after a run; empty for nothing."""
        ...

    def timings(self) -> Timings:
        """Since the beginning."""
        ...

    def close(self) -> None:
        """End agent and simulators at once. Safe to call twice."""
        ...

    def __enter__(self) -> Executor: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(slots=True)
class Times:
    """Where the wall-clock seconds of one attempt went, from its first episode to its last.

    total: of the attempt. simulators and agents: what they took, added up over their processes. waiting: in which
    an agent had nothing to do but wait for simulators, added up over agents. records: scoring and writing.
    """

    episodes: int = 0
    total: float = 0.0
    simulators: float = 0.0
    agents: float = 0.0
    waiting: float = 0.0
    records: float = 0.0

    def describe(self, n_agents: int, n_simulators: int) -> str:
        """Shares of the attempt: of the time of the agents' processes, and of that of the simulators'.

        Several agents act beside the process that keeps the records, a single one in it.
        """
        agents, simulators = self.total * n_agents, self.total * n_simulators
        parts = {"agent": self.agents, "wait for simulators": self.waiting}
        if n_agents == 1:
            parts["records"] = self.records
        parts["other"] = max(0.0, agents - sum(parts.values()))
        shares = ", ".join(f"{name} {_percent(seconds, agents)}" for name, seconds in parts.items())
        beside = "" if n_agents == 1 else f"; records {_percent(self.records, self.total)} beside them"
        who = "" if n_agents == 1 else f" of {n_agents} agents"
        return (
            f"where {self.total:.1f} s{who} went: {shares}{beside}; "
            f"{n_simulators} simulators at work {_percent(self.simulators, simulators)} of the time; "
            f"{self.episodes} episodes, {3600 * self.episodes / self.total:.0f} episodes/h"
        )


def unusable(reason: str) -> str:
    """Why a run ends for want of simulators."""
    return f"a simulator cannot be used: {reason}"


def close(each: Agent | Env | None) -> None:
    """Close an agent or an environment. What it raises costs a line: the rows are there."""
    try:
        if each is not None:
            each.close()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        say(f"warning: {type(each).__name__}.close failed: {describe(error)}")


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %"


def prepare(env: Env) -> None:
    """Make an environment of this process ready for its first use, with progress."""
    with StepProgress() as show:
        for step in said.steps(env):
            show(step)
