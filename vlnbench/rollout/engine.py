"""Many simulators, one agent: each simulator runs episodes in its own process, the agent acts on what is ready.

A simulator steps while the agent thinks about the others. Whatever happens to one process costs the episode that
it was running and no other.
"""

from __future__ import annotations

import math
import selectors
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from vlnbench.errors import GpuMemoryError, LostBatchError, RunError, UsageError
from vlnbench.interfaces import Action, Agent, Observation
from vlnbench.rollout import said
from vlnbench.rollout.agent_options import MAX_BATCH
from vlnbench.rollout.answers import Kept, tells
from vlnbench.rollout.episode import Outcome, StepTimes, Task, acts_ahead, decided, failure, reported
from vlnbench.rollout.executor import Limits, Timings, unusable
from vlnbench.rollout.simulators.channel import Finished, Preparing, Ready, Watched
from vlnbench.rollout.simulators.worker import START_TIMEOUT_S, Worker
from vlnbench.traits import KeepsMemory, TimesBatches, Watches
from vlnbench.util.gpu_memory import first_line, halved, is_gpu_memory
from vlnbench.util.machine import cores

MAX_STARTS = 3
"""A simulator that dies so often in a row before it is ready will not get ready."""

LINGER = 0.1
"""How long the agent waits for more simulators to get ready, as a part of how long it last thought."""

PATIENCE = 2.0
"""The same, beyond that, where agent and simulators share the cores and simulators are at work on all of them: an
agent that goes ahead would only slow them down, and act on few episodes at once."""

POLL_S = 1.0


class Pool(Protocol):
    """Simulator processes."""

    workers: list[Worker]

    def replace(self, number: int) -> Worker:
        """Another process in place of one that is dead or hangs."""
        ...


class SceneQueue:
    """Tasks by scene."""

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self._scenes: dict[str, deque[Task]] = {}
        self._count = 0
        for task in tasks:
            self.put(task)

    def __len__(self) -> int:
        return self._count

    def put(self, task: Task) -> None:
        """Add a task to those of its scene."""
        self._scenes.setdefault(task.episode.scene_id, deque()).append(task)
        self._count += 1

    def take(self, loaded: str | None, others: Collection[str | None]) -> Task | None:
        """The next task for a simulator with one scene `loaded`, while `others` are loaded elsewhere.

        When its scene is done it begins the largest scene that nobody has, so that the long ones are not left to
        the end, and helps with the largest remaining one when there is no such scene.
        """
        if not self._scenes:
            return None
        if loaded not in self._scenes:
            loaded = max(self._scenes, key=lambda scene: (scene not in others, len(self._scenes[scene])))
        tasks = self._scenes[loaded]
        task = tasks.popleft()
        self._count -= 1
        if not tasks:
            del self._scenes[loaded]
        return task


@dataclass(eq=False)
class _Slot:
    """One simulator and what it is doing. With an observation it is the agent's turn, else the simulator's.

    since: when this turn began. began: the agent knows of the episode. agent_seconds: what it took for it so far.
    failed_starts: processes in a row that died before they were ready.
    """

    number: int
    worker: Worker
    failed_starts: int = 0
    task: Task | None = None
    scene: str | None = None
    observation: Observation | None = None
    began: bool = False
    since: float = field(default_factory=time.monotonic)
    agent_seconds: float = 0.0
    times: StepTimes = field(default_factory=StepTimes)

    @property
    def simulating(self) -> bool:
        """Whether the simulator owes an answer."""
        return not self.worker.ready or (self.task is not None and self.observation is None)

    def begin(self, task: Task) -> None:
        self.task, self.scene = task, task.episode.scene_id
        self.began, self.agent_seconds, self.times = False, 0.0, StepTimes()
        self.send(task)

    def send(self, message: Task | tuple[Action, ...] | bool | None) -> None:
        self.observation, self.since = None, time.monotonic()
        self.worker.send(message)

    def end(self) -> Task:
        """Take the running task from here."""
        assert self.task is not None
        task, self.task, self.observation = self.task, None, None
        return task

    def give_up(self) -> Task:
        """As `end`, in the agent's turn: the simulator waits for an action that will not come."""
        self.send(None)
        return self.end()


class Engine:
    """Runs tasks on simulators with one agent, once.

    timings: where the waiting is added up. `beat`: called while the run goes on; when it is not, the agent hangs.
    `kept`: what was said, by keys of tasks.
    """

    def __init__(self, simulators: Pool, agent: Agent, limits: Limits, timings: Timings) -> None:
        self._simulators, self._agent, self._timings = simulators, agent, timings
        self._max_batch, self._timeout_s = limits.max_batch or MAX_BATCH, limits.timeout_s
        self.beat: Callable[[], None] = lambda: None
        self._shares_cores = isinstance(agent, TimesBatches) and bool(agent.batch_seconds)
        self._slots = [_Slot(number, worker) for number, worker in enumerate(simulators.workers)]
        self._selector = selectors.DefaultSelector()
        self._alone: set[tuple[str, int]] = set()
        self._ahead = acts_ahead(agent)
        self._tells, self.kept = tells(agent, limits.answers), dict[tuple[str, int], Kept]()
        self._linger_until = self._thought = 0.0

    def run(self, queue: SceneQueue) -> Generator[Outcome, None, None]:
        """Outcomes in the order in which the episodes end. Raises RunError if a simulator cannot be started.

        Tasks may be added to the queue between outcomes. Close it if it is not run to its end: simulators in the
        middle of an episode are ended.
        """
        for slot in self._slots:
            self._selector.register(slot.worker, selectors.EVENT_READ, slot)
        try:
            while self._assign(queue):
                self.beat()
                for slot in self._answered():
                    yield from self._receive(slot)
                for slot in self._slots:
                    if self._seconds_left(slot) < 0:
                        yield from self._end_hanging(slot)
                yield from self._act(queue)
        finally:
            self._selector.close()
            for slot in self._slots:
                if slot.task is not None or not slot.worker.ready:
                    slot.worker.close()

    def _assign(self, queue: SceneQueue) -> bool:
        """Give idle simulators something to do. Returns whether the run goes on."""
        for slot in self._slots:
            if slot.worker.ready and slot.task is None and slot.worker.alive:
                others = [other.scene for other in self._slots if other is not slot]
                task = queue.take(slot.scene, others)
                if task is not None:
                    slot.begin(task)
                    self.kept[task.key] = Kept()
        return bool(queue) or any(slot.task is not None for slot in self._slots)

    def _answered(self) -> list[_Slot]:
        """Slots with a message, or a dead process; waits for one unless the agent has something to do."""
        if self._batch():
            limit = self._linger_until + self._patience() - time.monotonic() if self._lingers() else 0.0
        else:
            limit = min(POLL_S, *map(self._seconds_left, self._slots))
        start = time.perf_counter()
        ready = self._selector.select(max(0.0, limit))
        self._timings.waited_s += time.perf_counter() - start
        return [key.data for key, _ in ready]

    def _seconds_left(self, slot: _Slot) -> float:
        """Until a simulator that owes an answer is taken to be hanging."""
        if not slot.simulating:
            return math.inf
        return slot.since + (self._timeout_s if slot.worker.ready else START_TIMEOUT_S) - time.monotonic()

    def _receive(self, slot: _Slot) -> Iterator[Outcome]:
        try:
            message = slot.worker.receive()
        except EOFError:
            yield from self._replace(slot, "error", slot.worker.cause_of_death())
            return
        if isinstance(message, Ready):
            slot.failed_starts = 0
        elif isinstance(message, Finished):
            yield self._finished(slot, message)
        elif isinstance(message, Observation):
            slot.observation, slot.since = message, time.monotonic()
            yield from self._begin_episode(slot)
        elif isinstance(message, Watched):
            yield from self._watch(slot, message.observed)
        elif isinstance(message, Preparing):
            slot.since = time.monotonic()
        elif message.usage:
            raise UsageError(message.reason)
        elif slot.task is None:
            raise RunError(unusable(message.reason))
        else:
            yield Outcome(slot.end(), status="error", reason=message.reason, detail=message.detail)

    def _finished(self, slot: _Slot, message: Finished) -> Outcome:
        """The outcome of what a simulator has run to its end, with what is known of it here."""
        task, steps = slot.end(), len(message.rollout.trajectory.actions)
        try:
            report = reported(self._agent, slot.number) if slot.began else {}
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return failure(task, error)
        rollout = replace(
            message.rollout,
            agent_seconds=slot.agent_seconds,
            report=report,
            step_seconds=slot.times.by_part(steps) if task.kind is None else (),
        )
        return Outcome(task, rollout)

    def _replace(self, slot: _Slot, status: Literal["error", "timeout"], reason: str) -> Iterator[Outcome]:
        """Replace a simulator process that died or hangs, at the cost of its episode."""
        if not slot.worker.ready:
            slot.failed_starts += 1
            if slot.failed_starts >= MAX_STARTS:
                raise RunError(unusable(reason))
        self._selector.unregister(slot.worker)
        slot.worker, slot.scene = self._simulators.replace(slot.number), None
        self._selector.register(slot.worker, selectors.EVENT_READ, slot)
        slot.since = time.monotonic()
        if slot.task is not None:
            yield Outcome(slot.end(), status=status, reason=reason)

    def _end_hanging(self, slot: _Slot) -> Iterator[Outcome]:
        limit = self._timeout_s if slot.worker.ready else START_TIMEOUT_S
        reason = f"the simulator made no progress for {limit:g} s"
        stack = slot.worker.stack()
        yield from self._replace(slot, "timeout", f"{reason}; it was in {stack}" if stack else reason)

    def _begin_episode(self, slot: _Slot) -> Iterator[Outcome]:
        """Tell the agent of an episode when its first observation is there."""
        if slot.began or slot.task is None:
            return
        slot.began, task = True, slot.task
        start = time.perf_counter()
        try:
            episode = task.episode if self._agent.privileged else task.episode.for_agent()
            self._agent.reset(slot.number, episode, task.seed)
        except (UsageError, RunError, KeyboardInterrupt):
            raise
        except BaseException as error:
            yield self._failure(slot, error)
        slot.agent_seconds += time.perf_counter() - start

    def _watch(self, slot: _Slot, observation: Observation) -> Iterator[Outcome]:
        """Show the agent what somebody else acts on; nothing is to be decided, so there is nothing to wait for."""
        yield from self._begin_episode(slot)
        if slot.task is None:
            return
        start = time.perf_counter()
        try:
            if not isinstance(self._agent, Watches):
                raise TypeError("the agent cannot be overruled: it lacks watch(observations)")
            self._agent.watch({slot.number: observation})
        except (UsageError, RunError, KeyboardInterrupt):
            raise
        except BaseException as error:
            yield self._failure(slot, error)
            return
        slot.agent_seconds += time.perf_counter() - start
        slot.send(True)

    def _batch(self) -> list[_Slot]:
        """Slots that the agent should act on next, the longest waiting first; some tasks only alone."""
        waiting = [slot for slot in self._slots if slot.observation is not None]
        waiting.sort(key=lambda slot: slot.since)
        if waiting and self._is_alone(waiting[0]):
            return waiting[:1]
        return [slot for slot in waiting if not self._is_alone(slot)][: self._max_batch]

    def _is_alone(self, slot: _Slot) -> bool:
        return slot.task is not None and slot.task.key in self._alone

    def _lingers(self) -> bool:
        """Whether the agent should wait for a fuller batch: some simulators are about to be ready."""
        full = min(self._max_batch, sum(slot.task is not None for slot in self._slots))
        return len(self._batch()) < full and time.monotonic() < self._linger_until + self._patience()

    def _patience(self) -> float:
        """Further seconds for which the agent waits where it could only take a core from simulators."""
        busy = self._shares_cores and sum(slot.simulating for slot in self._slots) >= cores()
        return PATIENCE * self._thought if busy else 0.0

    def _act(self, queue: SceneQueue) -> Iterator[Outcome]:
        """Let the agent act on a batch.

        If that fails, no one knows which episode it was, and the agent may have taken in what some of them saw:
        each begins anew and is acted on alone, so that only the one that fails again is an error. So does a single
        one that was not to blame. Where a GPU had no room, none is to blame: batches are smaller from then on.
        """
        batch = self._batch()
        if not batch or self._lingers():
            return
        start = time.perf_counter()
        try:
            actions = self._ask({slot.number: slot.observation for slot in batch if slot.observation is not None})
        except (UsageError, RunError, KeyboardInterrupt):
            raise
        except BaseException as error:
            too_many = len(batch) > 1 and is_gpu_memory(error) and not isinstance(error, GpuMemoryError)
            if len(batch) == 1 and (self._is_alone(batch[0]) or not isinstance(error, LostBatchError)):
                yield self._failure(batch[0], error)
                return
            if isinstance(error, GpuMemoryError):
                raise self._stopped(error) from error
            for slot in batch:
                task = slot.give_up()
                if not too_many:
                    self._alone.add(task.key)
                queue.put(task)
        else:
            self._tell(batch, actions, time.perf_counter() - start)
            return
        if too_many:
            self._max_batch = halved(len(batch), "episodes")

    def _tell(self, batch: Sequence[_Slot], actions: Mapping[int, tuple[Action, ...]], seconds: float) -> None:
        """Have simulators do what the agent took so many seconds to decide."""
        self._linger_until, self._thought = time.monotonic() + LINGER * seconds, seconds
        for slot in batch:
            chosen, share = actions[slot.number], seconds / len(batch)
            slot.agent_seconds += share
            slot.times.add(share, len(chosen))
            slot.send(chosen)
            if self._tells and slot.task is not None:
                self.kept[slot.task.key].add(self._agent, slot.number, chosen, share)

    def _failure(self, slot: _Slot, error: BaseException) -> Outcome:
        """The outcome of an episode that the agent failed in.

        Raises GpuMemoryError where that is no fault of it: how large a GPU is must not change a score.
        """
        if is_gpu_memory(error) and not isinstance(error, LostBatchError):
            raise self._stopped(error) from error
        return failure(slot.give_up(), error)

    def _stopped(self, error: BaseException) -> GpuMemoryError:
        """Why the run cannot go on with this GPU, and what would help."""
        count = len(self._slots)
        advice = "`vlnbench plan --inference` says what would fit"
        if count > 1:
            each = self._agent.episode_bytes if isinstance(self._agent, KeepsMemory) else 0
            less = f", up to {(count - 1) * each / 1e9:.1f} GB less" if each else ""
            advice = f"--envs 1 keeps the memory of 1 episode instead of {count}{less}; {advice}"
        return GpuMemoryError(
            f"out of GPU memory with one episode at a time: {first_line(error)}. What is recorded is kept; "
            f"run the same command again to go on: {advice}"
        )

    def _ask(self, observations: dict[int, Observation]) -> dict[int, tuple[Action, ...]]:
        """What is done in each slot before its next observation is looked at."""
        answers = said.answers(self._agent, observations)
        free = {slot.number for slot in self._slots if slot.task is not None and slot.task.kind is None}
        return {
            slot: decided(self._ahead, slot, answers[slot]) if slot in free else (said.action(answers[slot]),)
            for slot in observations
        }
