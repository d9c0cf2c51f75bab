"""A replica's process: an agent with simulators of its own, which runs the episodes it is given.

Started by `vlnbench.rollout.replicas`. The parent calls one method of `Replica` at a time and gets its result, or
the exception that a user is meant to read; any other exception ends the process.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlnbench.errors import GpuMemoryError, RunError, UsageError
from vlnbench.interfaces import Episode
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.agents import AgentFacts
from vlnbench.rollout.engine import SceneQueue
from vlnbench.rollout.episode import Outcome, Task
from vlnbench.rollout.executor import EnvSetup, Limits
from vlnbench.rollout.processes import Processes
from vlnbench.rollout.simulators.channel import Preparing
from vlnbench.util.processes.child import HungUp, Line, live_and_die_with_parent


@dataclass(frozen=True, slots=True)
class Ran:
    """One outcome, and since the last one: how many seconds the agent has waited for simulators, and lines about
    GPU memory that did not suffice. memory: as of `executor.Timings`, None for an agent that takes none."""

    outcome: Outcome
    waited_s: float
    shortages: tuple[str, ...] = ()
    memory: Mapping[str, Any] | None = None


def main(descriptor: int, envs: int, preload: str, folder: str) -> None:
    """Serve the parent until it closes the pipe. folder: where the user works; agents may lie there."""
    live_and_die_with_parent()
    line = Line(descriptor)
    if Path(folder).is_dir():
        os.chdir(folder)
    with contextlib.suppress(HungUp), Processes(envs, preload) as processes:
        replica = Replica(processes)
        while True:
            method, arguments = line.receive()
            try:
                answer = getattr(replica, method)(*arguments)
            except (UsageError, RunError, GpuMemoryError) as error:
                answer = error
            line.send(answer)


class Replica:
    """What the parent may call, in this order; `go_on` while the answer is `Preparing`, `run` again and again."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._steps: Iterator[str]
        self._queue = SceneQueue()
        self._outcomes: Generator[Outcome, None, None] | None = None

    def load(self, name: str, options: AgentOptions) -> AgentFacts:
        """Make the agent."""
        return self._processes.load(name, options)

    def set_up(self, setup: EnvSetup) -> Preparing | str:
        """Begin to make the environments; as `go_on`."""
        missing = [str(path) for path in setup.needs if not path.exists()]
        if missing:
            raise UsageError(
                f"{missing[0]}: not there on {socket.gethostname()}; data must lie on a file system that all "
                "machines of the cluster share, at the same path"
            )
        self._outcomes = None
        self._steps = self._processes.set_up_steps(setup)
        return self.go_on()

    def go_on(self) -> Preparing | str:
        """The next step of getting ready, as it begins; after the last one the name of the simulator."""
        for step in self._steps:
            return Preparing(step)
        return self._processes.simulator

    def check(self, episodes: Sequence[Episode]) -> None:
        """As `Env.check`."""
        self._processes.check(episodes)

    def run(self, tasks: Sequence[Task], limits: Limits) -> Ran:
        """Take some more tasks and go on until the next outcome. Some task must be without one."""
        for task in tasks:
            self._queue.put(task)
        if self._outcomes is None:
            self._outcomes = self._processes.work(self._queue, limits)
        timings = self._processes.timings()
        before, said = timings.waited_s, len(timings.shortages)
        outcome = next(self._outcomes)
        return Ran(outcome, timings.waited_s - before, tuple(timings.shortages[said:]), timings.memory.get(0))

    def remarks(self) -> str:
        """What the agent has to say after a run."""
        return self._processes.remarks()
