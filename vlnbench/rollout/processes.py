"""Many simulators in processes of their own, one agent in this one."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any

from vlnbench.errors import RunError, UsageError
from vlnbench.interfaces import Agent, Episode
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.agents import AgentFacts, facts_of, load_agent, remarks_of
from vlnbench.rollout.channel import Check, Failed, Preparing, Setup
from vlnbench.rollout.engine import START_TIMEOUT_S, Engine, SceneQueue, Worker, unusable
from vlnbench.rollout.episode import Outcome, Task
from vlnbench.rollout.executor import NO_BATCH, EnvSetup, Limits, Timings
from vlnbench.util.progress import StepProgress
from vlnbench.util.watchdog import Watchdog


class Simulators:
    """`count` simulator processes, which start at once. Use as a context manager.

    preload: as of `Worker`. `simulator` is known when `set_up` has ended.
    """

    simulator: str

    def __init__(self, count: int, preload: str = "") -> None:
        self._preload = preload
        self._setup: Setup
        self.workers = [Worker(preload) for _ in range(count)]

    def __enter__(self) -> Simulators:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def set_up(self, setup: EnvSetup) -> Iterator[str]:
        """Make the environments and wait for the first of them; yields what it does to get ready, if that is new.

        May be called again between runs. Raises UsageError if an environment does, RunError if the first process
        dies; that ends all.
        """
        self.workers = [Worker(self._preload) if worker.closed else worker for worker in self.workers]
        self._setup = Setup(setup.factory, setup.arguments, setup.sensors)
        for worker in self.workers:
            worker.set_up(self._setup)
        while isinstance(answer := self._answer(START_TIMEOUT_S), Preparing):
            yield answer.step
        self.simulator = answer.simulator

    def check(self, episodes: Sequence[Episode]) -> None:
        """As `Env.check`."""
        self.workers[0].send(Check(episodes))
        self._answer()

    def replace(self, number: int) -> Worker:
        """Another process in place of one that is dead or hangs."""
        self.workers[number].close()
        self.workers[number] = Worker(self._preload)
        self.workers[number].set_up(self._setup)
        return self.workers[number]

    def revive(self) -> None:
        """Other processes in place of those that were ended in the middle of an episode."""
        for number, worker in enumerate(self.workers):
            if worker.closed:
                self.replace(number)

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.close()

    def _answer(self, limit_s: float | None = None) -> Any:
        """What the first process says. Raises what it raised, and RunError if it dies or takes too long."""
        first = self.workers[0]
        error: Exception
        try:
            if limit_s is not None and not first.poll(limit_s):
                error = RunError(unusable(f"it was not ready after {limit_s:g} s"))
            else:
                message = first.receive()
                if not isinstance(message, Failed):
                    return message
                error = UsageError(message.reason) if message.usage else RunError(unusable(message.reason))
        except EOFError:
            error = RunError(unusable(first.cause_of_death()))
        self.close()
        raise error


class Processes:
    """The executor with `count` simulator processes and one agent here; see `Executor`."""

    agent: AgentFacts
    simulator: str

    def __init__(self, count: int, preload: str = "") -> None:
        self.simulators = Simulators(count, preload)
        self._agent: Agent | None = None
        self._timings = Timings(1, count)

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def load(self, name: str, options: AgentOptions) -> AgentFacts:
        return self.use(load_agent(name, options), name)

    def use(self, agent: Agent, name: str = "") -> AgentFacts:
        """As `load`, with an agent that is there already; it is closed with the rest."""
        self._agent, self.agent = agent, facts_of(agent, name or type(agent).__name__)
        return self.agent

    def set_up(self, setup: EnvSetup) -> None:
        with StepProgress() as show:
            for step in self.set_up_steps(setup):
                show(step)

    def set_up_steps(self, setup: EnvSetup) -> Iterator[str]:
        """As `set_up`, telling each step instead of showing it."""
        yield from self.simulators.set_up(setup)
        self.simulator = self.simulators.simulator

    def check(self, episodes: Sequence[Episode]) -> None:
        self.simulators.check(episodes)

    def run(self, tasks: Iterable[Task], limits: Limits = NO_BATCH) -> Generator[Outcome, None, None]:
        yield from self.work(SceneQueue(tasks), limits)

    def work(self, queue: SceneQueue, limits: Limits) -> Generator[Outcome, None, None]:
        """As `run`; tasks may be added to the queue between outcomes.

        An agent that hangs ends this process (`Watchdog`): nothing else helps. Between outcomes nobody watches.
        """
        assert self._agent is not None
        self.simulators.revive()
        engine = Engine(self.simulators, self._agent, limits, self._timings)
        with closing(engine.run(queue)) as outcomes:
            while True:
                with Watchdog(limits.timeout_s, self.simulators.close) as watchdog:
                    engine.beat = watchdog.beat
                    outcome = next(outcomes, None)
                if outcome is None:
                    return
                yield outcome

    def remarks(self) -> str:
        return "" if self._agent is None else remarks_of(self._agent)

    def timings(self) -> Timings:
        return self._timings

    def close(self) -> None:
        self.simulators.close()
        if self._agent is not None:
            self._agent.close()
