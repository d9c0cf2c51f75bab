"""Many simulators in processes of their own, one agent in this one."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from vlnbench.errors import GpuMemoryError, RunError, UsageError
from vlnbench.interfaces import Action, Agent, Episode, Observation, Pose
from vlnbench.rollout.agent_options import MAX_BATCH, AgentOptions
from vlnbench.rollout.agents import AgentFacts, facts_of, load_agent, remarks_of
from vlnbench.rollout.engine import Engine, SceneQueue
from vlnbench.rollout.episode import Outcome, Task
from vlnbench.rollout.executor import NO_BATCH, EnvSetup, Limits, Timings, close, unusable
from vlnbench.rollout.simulators.channel import Check, Failed, Preparing, Setup
from vlnbench.rollout.simulators.worker import START_TIMEOUT_S, Worker, start_fork_server
from vlnbench.traits import FeelsActions, GrowsOnGpu, KeepsMemory, Resizes, TimesBatches
from vlnbench.util.gpu_memory import first_line, free_bytes, is_gpu_memory, shortages
from vlnbench.util.machine import cores
from vlnbench.util.measure import Vram, since_the_beginning
from vlnbench.util.processes.place import Place
from vlnbench.util.processes.watchdog import Watchdog
from vlnbench.util.progress import StepProgress

MAX_DEFAULT_COUNT = 4
"""More simulators than this seldom pay where the agent's speed is not known: each takes memory, and the agent is
the slower part."""

CHECK_TIMEOUT_S = 3600.0
"""For all episodes of a split; their scenes may lie on a slow file system."""

SHARE = 0.8
"""Of a GPU's free memory for what an agent keeps of its episodes; the rest is for what a pass takes."""

USABLE = 0.9
"""Of a GPU's free memory for what a rehearsal showed; the rest is for what the allocator cannot use."""

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


def count_on_gpu(agent: Agent, max_batch: int, free: int) -> int:
    """How many simulators an agent on a GPU should have: those of a pass and half as many that step meanwhile.

    As far as there are cores, and memory for what the agent keeps of each. free: bytes of the GPU.
    """
    usual = max(1, min(MAX_DEFAULT_COUNT, cores()))
    wanted = max(usual, min(max_batch + max_batch // 2, cores()))
    each = agent.episode_bytes if isinstance(agent, KeepsMemory) else 0
    return max(1, min(wanted, int(SHARE * free / each))) if each else wanted


class Rehearsed(NamedTuple):
    """What the fullest steps of one made-up episode took of a GPU, in bytes: what stays, and what a pass takes."""

    kept: int
    passing: int


def rehearse(agent: Agent, steps: int, memory: Vram) -> Rehearsed:
    """Have the agent act out an episode of so many steps, with a long instruction and frames of noise.

    Slot 0 is begun anew afterwards, and what the agent counts is as before. What it took is a phase of `memory`.
    Raises GpuMemoryError where the GPU has no room for one episode.
    """
    height, width = agent.expects.height or 480, agent.expects.width or 640
    noise, text = np.random.default_rng(0), "Walk past the sofa and turn left. " * 40
    episode = Episode("rehearsal", "rehearsal", "", (0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0), text)
    before, counts = memory.allocated, {k: v for k, v in vars(agent).items() if isinstance(v, int)}
    memory.begin("rehearsal")
    try:
        agent.reset(0, episode, 0)
        for step in range(steps + 1):
            seen = Observation(
                text,
                step,
                rgb=noise.integers(0, 256, (height, width, 3), dtype=np.uint8),
                depth=np.zeros((height, width), np.float32),
                pose=Pose(episode.start_position, episode.start_rotation),
            )
            action = agent.act({0: seen.for_agent(agent.sensors)})[0]
            if action is Action.STOP and isinstance(agent, FeelsActions):
                agent.feel(0, Action.MOVE_FORWARD)
    except Exception as error:
        if not is_gpu_memory(error):
            raise
        raise GpuMemoryError(
            f"out of GPU memory when one episode was rehearsed: {first_line(error)}. No episode was run; "
            "`vlnbench plan --inference` says what would fit"
        ) from error
    now = memory.allocated
    memory.begin("evaluation")
    agent.reset(0, episode, 0)
    vars(agent).update(counts)
    return Rehearsed(now - before, memory.phases["rehearsal"] - now)


def room(found: Rehearsed, free: int, count: int, max_batch: int) -> tuple[int, int]:
    """For how many simulators and episodes at once there is room, of so many; one at least. free: bytes."""
    room = int(USABLE * free)
    count = max(1, min(count, (room - found.passing) // max(found.kept, 1)))
    return count, max(1, min(max_batch, count, (room - count * found.kept) // max(found.passing, 1)))


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
        self._answer(CHECK_TIMEOUT_S)

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

    def _answer(self, limit_s: float) -> Any:
        """What the first process says. Raises what it raised, and RunError if it dies or takes too long."""
        first = self.workers[0]
        error: Exception
        try:
            if not first.answers(limit_s):
                stopped = "it was stopped (SIGSTOP)" if first.stopped else f"it was not ready after {limit_s:g} s"
                error = RunError(unusable(stopped))
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

    count: None: chosen when the agent is there. most: never more than these. max_batch: episodes at once that the
    agent will act on; None: as many as it is fastest with.
    """

    agent: AgentFacts
    simulator: str

    def __init__(
        self, count: int | None, preload: str = "", most: int | None = None, max_batch: int | None = None
    ) -> None:
        self.simulators = Simulators(count or 1, preload)
        self._count, self._most, self._wanted = count, most, max_batch
        self._agent: Agent | None = None
        self._place = Place()
        self._timings = Timings(1, count or 1)
        self._max_batch = MAX_BATCH
        self._memory: Vram | None = None
        self._at_once: int | None = None

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, name: str, options: AgentOptions) -> AgentFacts:
        with self._place.within():
            return self._load(name, options)

    def _load(self, name: str, options: AgentOptions) -> AgentFacts:
        agent = load_agent(name, options)
        self._memory = since_the_beginning("load")
        facts = self.use(agent, name)
        if self._memory is None:
            return facts
        self._memory.begin("evaluation")
        free = free_bytes(facts.hardware.get("gpu"))
        if free is not None and isinstance(agent, GrowsOnGpu):
            line = self._rehearse(agent, agent.fullest_step, self._memory, free)
            self.agent = replace(facts, description=f"{facts.description}\n{line}".lstrip())
        return self.agent

    def _rehearse(self, agent: Agent, steps: int, memory: Vram, free: int) -> str:
        """Find out what an episode takes at its fullest, and have no more of them than there is room for."""
        found = rehearse(agent, steps, memory)
        count, wanted = self.simulators.count, self._wanted or self._max_batch
        self.simulators.count, self._at_once = room(found, free, count, wanted)
        self._timings.n_simulators = self.simulators.count
        line = (
            f"rehearsed on the GPU: an episode keeps {found.kept / 1e9:.2f} GB and a pass takes "
            f"{found.passing / 1e9:.2f} more, of {free / 1e9:.1f} free: {self.simulators.count} simulators, up to "
            f"{self._at_once} episodes at once"
        )
        if (self.simulators.count, self._at_once) != (count, min(wanted, count)):
            line += f"; there is no room for {count} and {min(wanted, count)}"
        return line

    def use(self, agent: Agent, name: str = "") -> AgentFacts:
        """As `load`, with an agent that is there already; it is closed with the rest."""
        self._agent, facts = agent, facts_of(agent, name or type(agent).__name__)
        batch_seconds = agent.batch_seconds if isinstance(agent, TimesBatches) else {}
        self._max_batch = best_batch(batch_seconds)
        free = free_bytes(facts.hardware.get("gpu"))
        if free is None:
            chosen = best_count(batch_seconds, self._max_batch)
        else:
            chosen = count_on_gpu(agent, self._wanted or self._max_batch, free)
        count = self._count or chosen
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
        wanted = limits.max_batch or self._max_batch
        limits = replace(limits, max_batch=min(wanted, self._at_once or wanted))
        engine = Engine(self.simulators, self._agent, limits, self._timings)
        with closing(engine.run(queue)) as outcomes:
            while True:
                try:
                    with self._place.within(), Watchdog(limits.timeout_s, self.simulators.close) as watchdog:
                        engine.beat = watchdog.beat
                        outcome = next(outcomes, None)
                finally:
                    self._timings.shortages += shortages()
                    if self._memory is not None:
                        self._timings.take_in(0, asdict(self._memory.peaks()))
                if outcome is None:
                    return
                yield replace(outcome, answers=tuple(engine.kept.pop(outcome.task.key).all))

    def remarks(self) -> str:
        return "" if self._agent is None else remarks_of(self._agent)

    def timings(self) -> Timings:
        return self._timings

    def close(self) -> None:
        self.simulators.close()
        if self._memory is not None:
            self._memory.stop()
        close(self._agent)
