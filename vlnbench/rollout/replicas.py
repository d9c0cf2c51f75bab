"""Several agents, each with simulators of its own, fed from one queue.

A replica is a process with an agent and its simulators, started here or on another machine by a `Launcher`
(`vlnbench.rollout.ray` has the one for clusters). Replicas know nothing of each other; the parent gives each of
them episodes and takes the outcomes.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import Any, Literal, Protocol

from vlnbench.errors import RunError, UsageError
from vlnbench.interfaces import Episode
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.agents import AgentFacts
from vlnbench.rollout.engine import MAX_STARTS, POLL_S, SceneQueue
from vlnbench.rollout.episode import Outcome, Task
from vlnbench.rollout.executor import NO_BATCH, EnvSetup, Limits, Timings
from vlnbench.rollout.replica_main import Ran
from vlnbench.rollout.simulators.channel import Preparing
from vlnbench.util.machine import CORES, cores
from vlnbench.util.processes.child import STOPPED_S, Child, Stops
from vlnbench.util.processes.watchdog import EXIT_CODE
from vlnbench.util.progress import StepProgress, say
from vlnbench.version import __version__

MAX_TRIES = 3
"""An episode that so many replicas were running when their machine was lost is given up."""


GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"


class ReplicaLostError(Exception):
    """A replica has ended. guilty: what it was running may have done that; otherwise its machine was lost."""

    def __init__(self, reason: str, status: Literal["error", "timeout"] = "error", guilty: bool = True) -> None:
        super().__init__(reason, status, guilty)
        self.reason, self.status, self.guilty = reason, status, guilty


class Remote(Protocol):
    """The parent's end of one replica. placed: it has a process; otherwise it waits for a machine with room."""

    @property
    def placed(self) -> bool: ...

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of `replica_main.Replica`; one at a time."""
        ...

    def result(self) -> Any:
        """What the call returned. Raises what it raised, and ReplicaLostError if the replica is no more."""
        ...

    def close(self) -> None:
        """End it at once. Safe to call twice."""
        ...


class Launcher(Protocol):
    """Starts replicas somewhere."""

    def open(self, index: int) -> Remote:
        """Start the process of a replica."""
        ...

    def wait(self, remotes: Sequence[Remote], limit_s: float) -> list[Remote]:
        """Those whose calls have ended; waits for the first."""
        ...

    def close(self) -> None:
        """Leave the place where replicas are; they have been closed."""
        ...


class LocalRemote:
    """A replica on this machine."""

    placed = True

    def __init__(self, envs: int, preload: str, folder: str, environment: Mapping[str, str]) -> None:
        self._child = Child(
            "agent", "vlnbench.rollout.replica_main", (envs, preload, folder), environment=environment
        )
        self._stops = Stops()

    def fileno(self) -> int:
        return self._child.fileno()

    def call(self, method: str, *arguments: Any) -> None:
        self._child.send((method, arguments))

    @property
    def stopped(self) -> bool:
        """Whether something has stopped it for too long, which `result` then says; to be asked every second."""
        return self._stops.long(self._child)

    def result(self) -> Any:
        while not self._child.poll(POLL_S):
            if self.stopped:
                raise ReplicaLostError(f"it was stopped (SIGSTOP) for {STOPPED_S:g} s", guilty=False)
        try:
            answer = self._child.receive()
        except EOFError:
            status: Literal["error", "timeout"] = "timeout" if self._child.exit_code() == EXIT_CODE else "error"
            raise ReplicaLostError(self._child.cause_of_death(), status) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._child.close()


class LocalLauncher:
    """Replicas on this machine.

    envs: simulators of each; preload: as of `engine.Worker`. gpus: names for CUDA_VISIBLE_DEVICES, for the
    replicas in turn; none: as they are. replicas: how many there will be, which share the cores.
    """

    def __init__(self, envs: int, preload: str = "", gpus: Sequence[str] = (), replicas: int = 1) -> None:
        self._envs, self._preload, self._gpus = envs, preload, gpus
        self._cores = max(1, cores() // replicas)

    def open(self, index: int) -> LocalRemote:
        environment = {CORES: str(self._cores)}
        if self._gpus:
            environment[GPU_VARIABLE] = self._gpus[index % len(self._gpus)]
        return LocalRemote(self._envs, self._preload, os.getcwd(), environment)

    def wait(self, remotes: Sequence[Remote], limit_s: float) -> list[Remote]:
        ready: list[Any] = wait(remotes, limit_s)  # type: ignore[arg-type]
        return [each for each in remotes if each in ready or (isinstance(each, LocalRemote) and each.stopped)]

    def close(self) -> None:
        """Nothing to leave."""


@dataclass(eq=False)
class _Replica:
    """One replica and how far it is: load -> set_up -> run.

    free: the scenes that its idle simulators have loaded.
    """

    index: int
    remote: Remote
    free: list[str | None]
    stage: Literal["load", "set_up", "run"] = "load"
    calling: bool = False
    failed_starts: int = 0
    running: dict[tuple[str, int], Task] = field(default_factory=dict)

    def call(self, method: str, *arguments: Any) -> None:
        self.calling = True
        self.remote.call(method, *arguments)


class Replicas:
    """The executor with `count` replicas of `envs` simulators each, which start at once; see `Executor`."""

    agent: AgentFacts
    simulator: str

    def __init__(self, launcher: Launcher, count: int, envs: int) -> None:
        self.envs, self._launcher = envs, launcher
        self._timings = Timings(count, count * envs)
        self._facts: AgentFacts | None = None
        self._loading: tuple[str, AgentOptions]
        self._setup: EnvSetup | None = None
        self._known: str | None = None
        self._limits = Limits()
        self._show: Callable[[str], None] = lambda step: None
        self._tries: Counter[tuple[str, int]] = Counter()
        self._replicas = [_Replica(index, launcher.open(index), [None] * envs) for index in range(count)]

    def __len__(self) -> int:
        return len(self._replicas)

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for replica in self._replicas:
            replica.remote.close()
        self._launcher.close()

    def load(self, name: str, options: AgentOptions) -> AgentFacts:
        """Waits for all agents but those that wait for a machine, if there is another.

        Raises UsageError also if agents differ, and RunError if a process dies.
        """
        self._loading = (name, options)
        for replica in self._replicas:
            replica.call("load", name, options)
        self._wait_for("set_up")
        assert self._facts is not None
        count = f"{len(self)} agents with {self.envs} simulators each"
        self.agent = replace(self._facts, description=f"{self._facts.description}\n{count}".lstrip())
        return self.agent

    def set_up(self, setup: EnvSetup) -> None:
        """Waits as `load` does."""
        self._drain()
        self._setup, self._known = setup, None
        for replica in self._replicas:
            if replica.stage != "load":
                replica.stage = "set_up"
                replica.call("set_up", setup)
        with StepProgress() as self._show:
            self._wait_for("run")
        self._show = lambda step: None

    def check(self, episodes: Sequence[Episode]) -> None:
        replica = next(replica for replica in self._replicas if replica.stage == "run")
        self._ask(replica, "check", episodes)

    def remarks(self) -> str:
        """What the agents that are idle have to say, each line once."""
        idle = [replica for replica in self._replicas if replica.stage == "run" and not replica.calling]
        return "\n".join(dict.fromkeys(remark for each in idle if (remark := self._ask(each, "remarks"))))

    def timings(self) -> Timings:
        return self._timings

    def run(self, tasks: Iterable[Task], limits: Limits = NO_BATCH) -> Generator[Outcome, None, None]:
        """A replica that dies costs the episodes it was running an error each; if its machine was lost, they begin
        anew elsewhere. Raises RunError if a replica cannot be started any more.
        """
        self._drain()
        self._limits = limits
        yield from self._work(SceneQueue(tasks))

    def _drain(self) -> None:
        """Wait for outcomes that an earlier run did not wait for."""
        for _ in self._work(SceneQueue()):
            pass

    def _work(self, queue: SceneQueue) -> Iterator[Outcome]:
        while queue or any(replica.running for replica in self._replicas):
            for replica in self._replicas:
                self._feed(replica, queue)
            for replica in self._answered():
                outcomes = self._receive(replica, queue)
                self._feed(replica, queue)  # before anything is done with what it sent
                yield from outcomes

    def _wait_for(self, stage: str) -> None:
        """Until some replica has reached a stage, and those that have a process have too."""
        order = ("load", "set_up", "run")
        while any(replica.calling and replica.remote.placed for replica in self._replicas) or not any(
            order.index(replica.stage) >= order.index(stage) for replica in self._replicas
        ):
            for replica in self._answered():
                self._receive(replica, SceneQueue())

    def _answered(self) -> Iterator[_Replica]:
        """Replicas whose calls have ended."""
        calling = {id(replica.remote): replica for replica in self._replicas if replica.calling}
        for remote in self._launcher.wait([replica.remote for replica in calling.values()], POLL_S):
            yield calling[id(remote)]

    def _receive(self, replica: _Replica, queue: SceneQueue) -> list[Outcome]:
        """Take what a replica answers and move it on to its next stage."""
        replica.calling = False
        try:
            answer = replica.remote.result()
        except ReplicaLostError as lost:
            return self._replace(replica, queue, lost)
        if replica.stage == "load":
            self._compare(answer)
            replica.stage = "set_up"
            if self._setup is not None:
                replica.call("set_up", self._setup)
        elif isinstance(answer, Preparing):
            self._show(answer.step)
            replica.call("go_on")
        elif replica.stage == "set_up":
            self.simulator = self._known = self._known or answer
            if answer != self._known:
                raise UsageError(f"simulators differ between agent processes: {self._known} and {answer}")
            replica.stage, replica.failed_starts = "run", 0
        elif isinstance(answer, Ran):
            self._timings.waited_s += answer.waited_s
            self._timings.shortages += answer.shortages
            self._timings.take_in(replica.index, answer.memory)
            task = answer.outcome.task
            del replica.running[task.key]
            replica.free.append(task.episode.scene_id)
            return [answer.outcome]
        return []

    def _feed(self, replica: _Replica, queue: SceneQueue) -> None:
        """Give a replica that waits for it an episode for each idle simulator, but not more than its share."""
        if replica.stage != "run" or replica.calling:
            return
        left = len(queue) + sum(len(each.running) for each in self._replicas)
        share = math.ceil(left / len(self._replicas))
        tasks: list[Task] = []
        while replica.free and len(replica.running) < share:
            scenes = [task.episode.scene_id for each in self._replicas for task in each.running.values()]
            task = queue.take(replica.free[-1], scenes)
            if task is None:
                break
            replica.free.pop()
            tasks.append(task)
            replica.running[task.key] = task
        if replica.running:
            replica.call("run", tasks, self._limits)

    def _replace(self, replica: _Replica, queue: SceneQueue, lost: ReplicaLostError) -> list[Outcome]:
        """Start another process in place of one that has died."""
        started = replica.stage == "run"
        replica.failed_starts += not started
        hopeless = replica.failed_starts >= MAX_STARTS or (lost.guilty and self._known is None)
        if not started and hopeless:
            raise RunError(f"an agent cannot be used: {lost.reason}")
        replica.remote.close()
        tasks = list(replica.running.values())
        where = "" if lost.guilty else "; its episodes begin anew"
        say(
            f"agent process {replica.index + 1} is started anew ({len(tasks)} episodes in flight{where}): "
            f"{lost.reason}"
        )
        replica.remote = self._launcher.open(replica.index)
        replica.stage, replica.free, replica.running = "load", [None] * self.envs, {}
        replica.call("load", *self._loading)
        outcomes = []
        for task in tasks:
            self._tries[task.key] += 1
            if lost.guilty or self._tries[task.key] >= MAX_TRIES:
                outcomes.append(Outcome(task, status=lost.status, reason=lost.reason))
            else:
                queue.put(task)
        return outcomes

    def _compare(self, facts: AgentFacts) -> None:
        """Refuse an agent that is not the one of the other replicas, or of another version of vlnbench."""
        if facts.version != __version__:
            raise UsageError(
                f"vlnbench is {__version__} here and {facts.version} on {facts.host}: install the same version"
            )
        first = self._facts = self._facts or facts
        differing = first.differences(facts)
        if differing:
            raise UsageError(
                f"the agents on {first.host} and {facts.host} are not the same ({', '.join(differing)}); run them "
                "on devices of one kind, with the same packages"
            )

    def _ask(self, replica: _Replica, method: str, *arguments: Any) -> Any:
        """Call an idle replica and wait for the answer. Raises RunError if it dies."""
        replica.remote.call(method, *arguments)
        while not self._launcher.wait([replica.remote], POLL_S):
            pass
        try:
            return replica.remote.result()
        except ReplicaLostError as lost:
            raise RunError(f"an agent cannot be used: {lost.reason}") from lost
