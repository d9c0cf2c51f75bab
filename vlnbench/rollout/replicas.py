"""Several agents, each with simulators of its own, fed from one queue.

A lane is a process with an agent and its simulators, here or on another machine (`vlnbench.rollout.launcher`).
Lanes know nothing of each other; the parent gives each of them episodes and takes the outcomes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn

from vlnbench import __version__
from vlnbench.errors import RunError, UsageError
from vlnbench.interfaces import Action, Episode, Observation, Sensor, StandsFor
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.engine import MAX_STARTS, POLL_S
from vlnbench.rollout.episode import Outcome, Task
from vlnbench.rollout.launcher import LaneLostError, Remote, Site
from vlnbench.rollout.messages import AgentFacts, EnvSetup, Limits, Ran
from vlnbench.rollout.schedule import SceneQueue
from vlnbench.util.progress import say

MAX_TRIES = 3
"""An episode that so many lanes were running when their machine was lost is given up."""


class LaneAgent:
    """The agent as the parent knows it: everything but how it acts."""

    def __init__(self, facts: AgentFacts, lanes: Lanes) -> None:
        self.sensors, self.privileged, self.expects = facts.sensors, facts.privileged, facts.expects
        self.identity = facts.identity
        self.description = f"{facts.description}\n{len(lanes)} agents with {lanes.envs} simulators each".lstrip()
        self.stands_for = StandsFor(facts.name, facts.code, facts.place)
        self._lanes = lanes

    @property
    def remarks(self) -> str:
        """What the agents have to say after a run."""
        return "\n".join(self._lanes.remarks())

    def reset(self, slot: int, episode: Episode, seed: int) -> NoReturn:
        raise NotImplementedError("agents of lanes act in their lanes")

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        raise NotImplementedError("agents of lanes act in their lanes")

    def close(self) -> None:
        """`Lanes.close` does it."""


@dataclass(eq=False)
class _Lane:
    """One lane and how far it is: load -> set_up -> run. free: the scenes that its idle simulators have loaded."""

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


class Lanes:
    """`count` lanes with `envs` simulators each, which start at once. Use as a context manager.

    Call `load`, `set_up` and `check`, in this order, then `run`. waited_s: seconds that the agents waited for
    simulators. `simulator` is known after `set_up`.
    """

    simulator: str

    def __init__(self, site: Site, count: int, envs: int) -> None:
        self.waited_s = 0.0
        self.envs, self._site = envs, site
        self._facts: AgentFacts | None = None
        self._loading: tuple[str, AgentOptions]
        self._setup: EnvSetup | None = None
        self._tries: Counter[tuple[str, int]] = Counter()
        self._lanes = [_Lane(index, site.open(index), [None] * envs) for index in range(count)]

    def __len__(self) -> int:
        return len(self._lanes)

    def __enter__(self) -> Lanes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        for lane in self._lanes:
            lane.remote.close()
        self._site.close()

    def load(self, name: str, options: AgentOptions) -> LaneAgent:
        """Make the agents, and wait for them; not for those that wait for a machine, if there is another.

        Raises UsageError if an agent does or if they differ, RunError if a process dies.
        """
        self._loading = (name, options)
        for lane in self._lanes:
            lane.call("load", name, options)
        self._wait_for("set_up")
        assert self._facts is not None
        return LaneAgent(self._facts, self)

    def set_up(
        self, factory: str, arguments: tuple[Any, ...], sensors: frozenset[Sensor], needs: Iterable[Path] = ()
    ) -> None:
        """Make the environments, all with the same arguments, and wait as `load` does. Raises as it does.

        factory: import string of what makes an `Env`; needs: paths that must exist where it is made.
        """
        self._setup = EnvSetup(factory, arguments, sensors, tuple(needs))
        for lane in self._lanes:
            if lane.stage == "set_up":
                lane.call("set_up", self._setup)
        self._wait_for("run")

    def check(self, episodes: Sequence[Episode]) -> None:
        """As `Env.check`."""
        lane = next(lane for lane in self._lanes if lane.stage == "run")
        self._ask(lane, "check", episodes)

    def remarks(self) -> list[str]:
        """What the agents that are idle have to say, each line once."""
        idle = [lane for lane in self._lanes if lane.stage == "run" and not lane.calling]
        return list(dict.fromkeys(remark for lane in idle if (remark := self._ask(lane, "remarks"))))

    def run(
        self, tasks: Iterable[Task], limits: Limits, beat: Callable[[], None] = lambda: None
    ) -> Generator[Outcome, None, None]:
        """Outcomes in the order in which they arrive. beat: called while the run goes on.

        A lane that dies costs the episodes it was running an error each; if its machine was lost, they begin anew
        elsewhere. Raises RunError if a lane cannot be started any more.
        """
        queue = SceneQueue(tasks)
        while queue or any(lane.running for lane in self._lanes):
            beat()
            for lane in self._lanes:
                self._feed(lane, queue, limits)
            for lane in self._news():
                heard = self._hear(lane, queue)
                self._feed(lane, queue, limits)  # before anything is done with what it told
                yield from heard

    def _wait_for(self, stage: str) -> None:
        """Until some lane has reached a stage, and those that have a process have too."""
        order = ("load", "set_up", "run")
        while any(lane.calling and lane.remote.placed for lane in self._lanes) or not any(
            order.index(lane.stage) >= order.index(stage) for lane in self._lanes
        ):
            for lane in self._news():
                self._hear(lane, SceneQueue())

    def _news(self) -> Iterator[_Lane]:
        """Lanes whose calls have ended."""
        calling = {id(lane.remote): lane for lane in self._lanes if lane.calling}
        for remote in self._site.wait([lane.remote for lane in calling.values()], POLL_S):
            yield calling[id(remote)]

    def _hear(self, lane: _Lane, queue: SceneQueue) -> list[Outcome]:
        """Take what a lane answers and move it on to its next stage."""
        lane.calling = False
        try:
            answer = lane.remote.result()
        except LaneLostError as lost:
            return self._bury(lane, queue, lost)
        if lane.stage == "load":
            self._compare(answer)
            lane.stage = "set_up"
            if self._setup is not None:
                lane.call("set_up", self._setup)
        elif lane.stage == "set_up":
            self.simulator = getattr(self, "simulator", answer)
            if answer != self.simulator:
                raise UsageError(f"simulators differ between lanes: {self.simulator} and {answer}")
            lane.stage, lane.failed_starts = "run", 0
        elif isinstance(answer, Ran):
            self.waited_s += answer.waited_s
            task = answer.outcome.task
            del lane.running[task.key]
            lane.free.append(task.episode.scene_id)
            return [answer.outcome]
        return []

    def _feed(self, lane: _Lane, queue: SceneQueue, limits: Limits) -> None:
        """Give a lane that waits for it an episode for each idle simulator, but not more than its share."""
        if lane.stage != "run" or lane.calling:
            return
        left = len(queue) + sum(len(each.running) for each in self._lanes)
        share = math.ceil(left / len(self._lanes))
        tasks: list[Task] = []
        while lane.free and len(lane.running) < share:
            scenes = [task.episode.scene_id for each in self._lanes for task in each.running.values()]
            task = queue.take(lane.free[-1], scenes)
            if task is None:
                break
            lane.free.pop()
            tasks.append(task)
            lane.running[task.key] = task
        if lane.running:
            lane.call("run", tasks, limits)

    def _bury(self, lane: _Lane, queue: SceneQueue, lost: LaneLostError) -> list[Outcome]:
        """Start a lane anew that has died."""
        started = lane.stage == "run"
        lane.failed_starts += not started
        if not started and (lane.failed_starts >= MAX_STARTS or (lost.guilty and not hasattr(self, "simulator"))):
            raise RunError(f"an agent cannot be used: {lost.reason}")
        lane.remote.close()
        tasks = list(lane.running.values())
        where = "" if lost.guilty else "; its episodes begin anew"
        say(f"lane {lane.index} is started anew ({len(tasks)} episodes in flight{where}): {lost.reason}")
        lane.remote = self._site.open(lane.index)
        lane.stage, lane.free, lane.running = "load", [None] * self.envs, {}
        lane.call("load", *self._loading)
        outcomes = []
        for task in tasks:
            self._tries[task.key] += 1
            if lost.guilty or self._tries[task.key] >= MAX_TRIES:
                outcomes.append(Outcome(task, status=lost.status, reason=lost.reason))
            else:
                queue.put(task)
        return outcomes

    def _compare(self, facts: AgentFacts) -> None:
        """Refuse an agent that is not the one of the other lanes, or of another version of vlnbench."""
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

    def _ask(self, lane: _Lane, method: str, *arguments: Any) -> Any:
        """Call an idle lane and wait for the answer. Raises RunError if it dies."""
        lane.remote.call(method, *arguments)
        while not self._site.wait([lane.remote], POLL_S):
            pass
        try:
            return lane.remote.result()
        except LaneLostError as lost:
            raise RunError(f"an agent cannot be used: {lost.reason}") from lost
