"""A lane's process: an agent with simulators of its own, which runs the episodes it is given.

Started by `vlnbench.rollout.launcher`. The parent calls one method of `Lane` at a time and gets its result, or the
exception that a user is meant to read; any other exception ends the process.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator, Sequence
from pathlib import Path

from vlnbench import __version__
from vlnbench.errors import GpuMemoryError, RunError, UsageError
from vlnbench.interfaces import Agent, Describes, Episode, Remarks, Represents
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.agents import code_digest, load_agent, recorded_name
from vlnbench.rollout.engine import Engine, Simulators
from vlnbench.rollout.episode import Outcome, Task
from vlnbench.rollout.messages import AgentFacts, EnvSetup, Limits, Ran
from vlnbench.rollout.schedule import SceneQueue
from vlnbench.util.child import HungUp, Line, live_and_die_with_parent
from vlnbench.util.watchdog import Watchdog


def main(descriptor: int, envs: int, preload: str, folder: str) -> None:
    """Serve the parent until it closes the pipe. folder: where the user works; agents may lie there."""
    live_and_die_with_parent()
    line = Line(descriptor)
    if Path(folder).is_dir():
        os.chdir(folder)
    with contextlib.suppress(HungUp), Simulators(envs, preload) as simulators:
        lane = Lane(simulators)
        while True:
            method, arguments = line.receive()
            try:
                answer = getattr(lane, method)(*arguments)
            except (UsageError, RunError, GpuMemoryError) as error:
                answer = error
            line.send(answer)


class Lane:
    """What the parent may call, in this order; `run` again and again."""

    def __init__(self, simulators: Simulators) -> None:
        self._simulators = simulators
        self._agent: Agent
        self._watchdog: Watchdog
        self._queue = SceneQueue()
        self._outcomes: Generator[Outcome, None, None] | None = None

    def load(self, name: str, options: AgentOptions) -> AgentFacts:
        """Make the agent."""
        agent = self._agent = load_agent(name, options)
        return AgentFacts(
            name=recorded_name(agent, name),
            code=code_digest(agent),
            place=dict(agent.stands_for.place) if isinstance(agent, Represents) else {},
            sensors=agent.sensors,
            privileged=agent.privileged,
            expects=agent.expects,
            identity=dict(agent.identity),
            description=agent.description if isinstance(agent, Describes) else "",
            version=__version__,
            host=socket.gethostname(),
        )

    def set_up(self, setup: EnvSetup) -> str:
        """Make the environments; returns the name of the simulator."""
        missing = [str(path) for path in setup.needs if not path.exists()]
        if missing:
            raise UsageError(
                f"{missing[0]}: not there on {socket.gethostname()}; data must lie on a file system that all "
                "machines of the cluster share, at the same path"
            )
        arguments = [setup.arguments] * len(self._simulators.workers)
        self._simulators.set_up(setup.factory, arguments, setup.sensors)
        return self._simulators.simulator

    def check(self, episodes: Sequence[Episode]) -> None:
        """As `Env.check`."""
        self._simulators.check(episodes)

    def run(self, tasks: Sequence[Task], limits: Limits) -> Ran:
        """Take some more tasks and go on until the next outcome. Some task must be without one."""
        if self._outcomes is None:
            bounds = (limits.max_batch, limits.timeout_s)
            engine = Engine(self._simulators, self._agent, *bounds, lambda: self._watchdog.beat())
            self._outcomes = engine.run(self._queue)
        for task in tasks:
            self._queue.put(task)
        before = self._simulators.waited_s
        with Watchdog(limits.timeout_s, self._simulators.close) as self._watchdog:
            outcome = next(self._outcomes)
        return Ran(outcome, self._simulators.waited_s - before)

    def remarks(self) -> str:
        """What the agent has to say after a run."""
        return self._agent.remarks if isinstance(self._agent, Remarks) else ""
