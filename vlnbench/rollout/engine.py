"""Many simulators, one agent: each simulator runs episodes in its own process, the agent acts on what is ready.

A simulator steps while the agent thinks about the others. Whatever happens to one process costs the episode that
it was running and no other.
"""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal

from vlnbench.errors import LostBatchError, RunError, UsageError
from vlnbench.interfaces import Action, Agent, Episode, Observation, Sensor
from vlnbench.rollout.channel import Check, Failed, Finished, Ready, Setup
from vlnbench.rollout.episode import Outcome, Task, failure, reported
from vlnbench.rollout.schedule import SceneQueue
from vlnbench.rollout.workers import Worker

MAX_STARTS, START_TIMEOUT_S = 3, 600.0
"""A simulator that dies so often in a row, or takes so long, before it is ready will not get ready."""

LINGER = 0.1
"""How long the agent waits for more simulators to get ready, as a part of how long it last thought."""

POLL_S = 1.0


class Simulators:
    """`count` simulator processes, which start at once. Use as a context manager.

    preload: import string of something to call at once in each process, while it is not known yet what
    environments are needed. `simulator` is known after `set_up`. waited_s: seconds that agents waited for them.
    """

    simulator: str

    def __init__(self, count: int, preload: str = "") -> None:
        self.waited_s = 0.0
        self._preload = preload
        self._setups: list[Setup] = []
        self.workers = [Worker(preload) for _ in range(count)]

    def __enter__(self) -> Simulators:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def set_up(self, factory: str, arguments: Sequence[tuple[Any, ...]], sensors: frozenset[Sensor]) -> None:
        """Make the environments, with one tuple of arguments each, and wait for the first of them.

        factory: import string of what makes an `Env`; sensors: which observations to send. May be called again
        between runs. Raises UsageError if an environment does, RunError if the first process dies; that ends all.
        """
        self.workers = [Worker(self._preload) if worker.closed else worker for worker in self.workers]
        self._setups = [Setup(factory, each, sensors) for each in arguments]
        for worker, setup in zip(self.workers, self._setups, strict=True):
            worker.set_up(setup)
        if not self.workers[0].poll(START_TIMEOUT_S):
            self.close()
            raise RunError(_unusable(f"it was not ready after {START_TIMEOUT_S:g} s"))
        self.simulator = self._answer().simulator

    def check(self, episodes: Sequence[Episode]) -> None:
        """As `Env.check`."""
        self.workers[0].send(Check(episodes))
        self._answer()

    def replace(self, slot: int) -> Worker:
        """Another process in place of one that is dead or hangs."""
        self.workers[slot].close()
        self.workers[slot] = Worker(self._preload)
        self.workers[slot].set_up(self._setups[slot])
        return self.workers[slot]

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.close()

    def _answer(self) -> Any:
        first = self.workers[0]
        try:
            message = first.receive()
            if not isinstance(message, Failed):
                return message
            error: Exception = UsageError(message.reason) if message.usage else RunError(_unusable(message.reason))
        except EOFError:
            error = RunError(_unusable(first.cause_of_death()))
        self.close()
        raise error


def _unusable(reason: str) -> str:
    return f"a simulator cannot be used: {reason}"


@dataclass(eq=False)
class _Seat:
    """One simulator and what it is doing. With an observation it is the agent's turn, else the simulator's.

    since: when this turn began. began: the agent knows of the episode. agent_seconds: what it took for it so far.
    failed_starts: processes in a row that died before they were ready.
    """

    slot: int
    worker: Worker
    failed_starts: int = 0
    task: Task | None = None
    scene: str | None = None
    observation: Observation | None = None
    began: bool = False
    since: float = field(default_factory=time.monotonic)
    agent_seconds: float = 0.0

    @property
    def simulating(self) -> bool:
        """Whether the simulator owes an answer."""
        return not self.worker.ready or (self.task is not None and self.observation is None)

    def begin(self, task: Task) -> None:
        self.task, self.scene = task, task.episode.scene_id
        self.began, self.agent_seconds = False, 0.0
        self.send(task)

    def send(self, message: Task | Action | None) -> None:
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

    max_batch: episodes that the agent acts on at once, at most. timeout_s: how long a simulator may take for one
    answer. beat: called while the run goes on; when it is not, the agent hangs.
    """

    def __init__(
        self,
        simulators: Simulators,
        agent: Agent,
        max_batch: int = 1,
        timeout_s: float = 300.0,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._simulators, self._agent = simulators, agent
        self._max_batch, self._timeout_s, self._beat = max_batch, timeout_s, beat
        self._seats = [_Seat(slot, worker) for slot, worker in enumerate(simulators.workers)]
        self._selector = selectors.DefaultSelector()
        self._alone: set[tuple[str, int]] = set()
        self._linger_until = 0.0

    def run(self, queue: SceneQueue) -> Generator[Outcome, None, None]:
        """Outcomes in the order in which the episodes end. Raises RunError if a simulator cannot be started.

        Tasks may be added to the queue between outcomes. Close it if it is not run to its end: simulators in the
        middle of an episode are ended.
        """
        for seat in self._seats:
            self._selector.register(seat.worker, selectors.EVENT_READ, seat)
        try:
            while self._assign(queue):
                self._beat()
                for seat in self._news():
                    yield from self._hear(seat)
                for seat in self._seats:
                    if self._seconds_left(seat) < 0:
                        yield from self._end_hanging(seat)
                yield from self._act(queue)
        finally:
            self._selector.close()
            for seat in self._seats:
                if seat.task is not None or not seat.worker.ready:
                    seat.worker.close()

    def _assign(self, queue: SceneQueue) -> bool:
        """Give idle simulators something to do. Returns whether the run goes on."""
        for seat in self._seats:
            if seat.worker.ready and seat.task is None and seat.worker.alive:
                others = [other.scene for other in self._seats if other is not seat]
                task = queue.take(seat.scene, others)
                if task is not None:
                    seat.begin(task)
        return bool(queue) or any(seat.task is not None for seat in self._seats)

    def _news(self) -> list[_Seat]:
        """Seats with a message, or a dead process; waits for one unless the agent has something to do."""
        if self._batch():
            limit = self._linger_until - time.monotonic() if self._lingers() else 0.0
        else:
            limit = min(POLL_S, *map(self._seconds_left, self._seats))
        start = time.perf_counter()
        ready = self._selector.select(max(0.0, limit))
        self._simulators.waited_s += time.perf_counter() - start
        return [key.data for key, _ in ready]

    def _seconds_left(self, seat: _Seat) -> float:
        """Until a simulator that owes an answer is taken to be hanging."""
        if not seat.simulating:
            return math.inf
        return seat.since + (self._timeout_s if seat.worker.ready else START_TIMEOUT_S) - time.monotonic()

    def _hear(self, seat: _Seat) -> Iterator[Outcome]:
        try:
            message = seat.worker.receive()
        except EOFError:
            yield from self._bury(seat, "error", seat.worker.cause_of_death())
            return
        if isinstance(message, Ready):
            seat.failed_starts = 0
        elif isinstance(message, Finished):
            report = reported(self._agent, seat.slot)
            yield Outcome(seat.end(), replace(message.rollout, agent_seconds=seat.agent_seconds, report=report))
        elif isinstance(message, Observation):
            seat.observation, seat.since = message, time.monotonic()
            yield from self._begin_episode(seat)
        elif message.usage:
            raise UsageError(message.reason)
        elif seat.task is None:
            raise RunError(_unusable(message.reason))
        else:
            yield Outcome(seat.end(), status="error", reason=message.reason, detail=message.detail)

    def _bury(self, seat: _Seat, status: Literal["error", "timeout"], reason: str) -> Iterator[Outcome]:
        """Replace a simulator process that died or hangs, at the cost of its episode."""
        if not seat.worker.ready:
            seat.failed_starts += 1
            if seat.failed_starts >= MAX_STARTS:
                raise RunError(_unusable(reason))
        self._selector.unregister(seat.worker)
        seat.worker, seat.scene = self._simulators.replace(seat.slot), None
        self._selector.register(seat.worker, selectors.EVENT_READ, seat)
        seat.since = time.monotonic()
        if seat.task is not None:
            yield Outcome(seat.end(), status=status, reason=reason)

    def _end_hanging(self, seat: _Seat) -> Iterator[Outcome]:
        limit = self._timeout_s if seat.worker.ready else START_TIMEOUT_S
        reason = f"the simulator made no progress for {limit:g} s"
        stack = seat.worker.stack()
        yield from self._bury(seat, "timeout", f"{reason}; it was in {stack}" if stack else reason)

    def _begin_episode(self, seat: _Seat) -> Iterator[Outcome]:
        """Tell the agent of an episode when its first observation is there."""
        if seat.began or seat.task is None:
            return
        seat.began, task = True, seat.task
        start = time.perf_counter()
        try:
            episode = task.episode if self._agent.privileged else task.episode.for_agent()
            self._agent.reset(seat.slot, episode, task.seed)
        except (UsageError, RunError):
            raise
        except Exception as error:
            yield failure(seat.give_up(), error)
        seat.agent_seconds += time.perf_counter() - start

    def _batch(self) -> list[_Seat]:
        """Seats that the agent should act on next, the longest waiting first; some tasks only alone."""
        waiting = [seat for seat in self._seats if seat.observation is not None]
        waiting.sort(key=lambda seat: seat.since)
        if waiting and self._is_alone(waiting[0]):
            return waiting[:1]
        return [seat for seat in waiting if not self._is_alone(seat)][: self._max_batch]

    def _is_alone(self, seat: _Seat) -> bool:
        return seat.task is not None and seat.task.key in self._alone

    def _lingers(self) -> bool:
        """Whether the agent should wait for a fuller batch: some simulators are about to be ready."""
        running = sum(seat.task is not None for seat in self._seats)
        return len(self._batch()) < min(self._max_batch, running) and time.monotonic() < self._linger_until

    def _act(self, queue: SceneQueue) -> Iterator[Outcome]:
        """Let the agent act on a batch.

        If that fails, no one knows which episode it was, and the agent may have taken in what some of them saw:
        each begins anew and is acted on alone, so that only the one that fails again is an error. So does a single
        one that was not to blame.
        """
        batch = self._batch()
        if not batch or self._lingers():
            return
        start = time.perf_counter()
        try:
            actions = self._ask({seat.slot: seat.observation for seat in batch if seat.observation is not None})
        except (UsageError, RunError):
            raise
        except Exception as error:
            if len(batch) == 1 and (self._is_alone(batch[0]) or not isinstance(error, LostBatchError)):
                yield failure(batch[0].give_up(), error)
                return
            for seat in batch:
                task = seat.give_up()
                self._alone.add(task.key)
                queue.put(task)
            return
        seconds = time.perf_counter() - start
        self._linger_until = time.monotonic() + LINGER * seconds
        for seat in batch:
            seat.agent_seconds += seconds / len(batch)
            seat.send(actions[seat.slot])

    def _ask(self, observations: dict[int, Observation]) -> dict[int, Action]:
        answers = self._agent.act(observations)
        missing = sorted(observations.keys() - answers.keys())
        if missing:
            raise ValueError(f"the agent gave no action for slots {missing}")
        return {slot: Action(answers[slot]) for slot in observations}
