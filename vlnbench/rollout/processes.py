"""Many simulators in processes of their own, one agent in this one."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from vlnbench.errors import RunError, UsageError
from vlnbench.interfaces import Agent, Episode
from vlnbench.rollout.agent_options import MAX_BATCH, AgentOptions
from vlnbench.rollout.agents import AgentFacts, facts_of, load_agent, remarks_of
from vlnbench.rollout.engine import Engine, SceneQueue, unusable
from vlnbench.rollout.episode import Outcome, Task
from vlnbench.rollout.executor import NO_BATCH, EnvSetup, Limits, Timings
from vlnbench.rollout.simulators.channel import Check, Failed, Preparing, Setup
from vlnbench.rollout.simulators.worker import START_TIMEOUT_S, Worker, start_fork_server
from vlnbench.traits import Resizes, TimesBatches
from vlnbench.util.gpu_memory import shortages
from vlnbench.util.machine import cores
from vlnbench.util.processes.watchdog import Watchdog
from vlnbench.util.progress import StepProgress

MAX_DEFAULT_COUNT = 4
"""More simulators than this seldom pay where the agent's speed is not known: each takes memory, and the agent is
the slower part."""

NEAR = 1.05
"""An agent is taken to be as fast with fewer episodes at once if it takes no more than this for each."""


def best_batch(batch_seconds: Mapping[int, float]) -> int:
    """How many episodes an agent should act on at once, by its `TimesBatches.batch_seconds`."""
    if not batch_seconds:
        return MAX_BATCH
    each = {count: seconds / count for count, seconds in batch_seconds.items()}
    return min(count for count, seconds in each.items() if seconds <= NEAR * min(each.values()))


def best_count(batch_seconds: Mapping[int, float], max_batch: int) -> int:
    """How many simulators an agent should have that acts on so many episodes at once.

    Where the agent's speed is known, as many as keep every core at work while it acts; otherwise one per core.
    """
    usual = max(1, min(MAX_DEFAULT_COUNT, cores()))
    return max(usual, max_batch + min(max_batch, cores())) if batch_seconds else usual


def _told(batch_seconds: Mapping[int, float], count: int, max_batch: int) -> str:
    """What was chosen and what was measured for it, for a reader."""
    times = ", ".join(f"{number}: {1000 * seconds / number:.1f} ms" for number, seconds in batch_seconds.items())
    return f"{count} simulators, up to {max_batch} episodes at once (time of each by their number: {times})"


class Simulators:
    """`count` simulator processes, there after `set_up`; what they need is imported from now on. Use as a context
    manager.

    preload: as of `Worker`. `simulator` is known when `set_up` has ended. `count` may change before `set_up`.
    """

    simulator: str

    def __init__(self, count: int, preload: str = "") -> None:
        self.count, self._preload = count, preload
        self._setup: Setup
        self._fork_server = start_fork_server(preload)
        self.workers: list[Worker] = []

    def __enter__(self) -> Simulators:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_up(self, setup: EnvSetup, rgb_size: tuple[int, int] | None = None) -> Iterator[str]:
        """Make the environments and wait for the first of them; yields what it does to get ready, if that is new.

        rgb_size: as of `Resizes`. May be called again between runs. Raises UsageError if an environment does,
        RunError if the first process dies; that ends all.
        """
        for worker in self.workers[self.count :]:
            worker.close()
        kept = [worker for worker in self.workers[: self.count] if not worker.closed]
        self.workers = [*kept, *(self._worker() for _ in range(self.count - len(kept)))]
        self._setup = Setup(setup.factory, setup.arguments, setup.sensors, rgb_size)
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
        self.workers[number] = self._worker()
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
        if self._fork_server is not None:
            self._fork_server.close()

    def _worker(self) -> Worker:
        return Worker(self._preload, self._fork_server)

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
    """The executor with `count` simulator processes and one agent here; see `Executor`.

    count: None: chosen when the agent is there. most: never more than these.
    """

    agent: AgentFacts
    simulator: str

    def __init__(self, count: int | None, preload: str = "", most: int | None = None) -> None:
        self.simulators = Simulators(count or 1, preload)
        self._count, self._most = count, most
        self._agent: Agent | None = None
        self._timings = Timings(1, count or 1)
        self._max_batch = MAX_BATCH

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, name: str, options: AgentOptions) -> AgentFacts:
        return self.use(load_agent(name, options), name)

    def use(self, agent: Agent, name: str = "") -> AgentFacts:
        """As `load`, with an agent that is there already; it is closed with the rest."""
        self._agent, facts = agent, facts_of(agent, name or type(agent).__name__)
        batch_seconds = agent.batch_seconds if isinstance(agent, TimesBatches) else {}
        self._max_batch = best_batch(batch_seconds)
        count = self._count or best_count(batch_seconds, self._max_batch)
        self.simulators.count = self._timings.n_simulators = min(count, self._most or count)
        note = f"\n{_told(batch_seconds, self.simulators.count, self._max_batch)}" if batch_seconds else ""
        self.agent = replace(facts, description=f"{facts.description}{note}".lstrip())
        return self.agent

    def set_up(self, setup: EnvSetup) -> None:
        with StepProgress() as show:
            for step in self.set_up_steps(setup):
                show(step)

    def set_up_steps(self, setup: EnvSetup) -> Iterator[str]:
        """As `set_up`, telling each step instead of showing it."""
        rgb_size = self._agent.rgb_size if isinstance(self._agent, Resizes) else None
        yield from self.simulators.set_up(setup, rgb_size)
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
        limits = replace(limits, max_batch=limits.max_batch or self._max_batch)
        engine = Engine(self.simulators, self._agent, limits, self._timings)
        with closing(engine.run(queue)) as outcomes:
            while True:
                try:
                    with Watchdog(limits.timeout_s, self.simulators.close) as watchdog:
                        engine.beat = watchdog.beat
                        outcome = next(outcomes, None)
                finally:
                    self._timings.shortages += shortages()
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
