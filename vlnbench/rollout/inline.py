"""One agent and one environment in this process: no process to start, and none that a fault could be kept in."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace

from vlnbench.errors import GpuMemoryError, RunError, UsageError
from vlnbench.interfaces import Agent, Env, Episode
from vlnbench.rollout import said
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.agents import AgentFacts, facts_of, load_agent, remarks_of
from vlnbench.rollout.answers import Kept, tells
from vlnbench.rollout.episode import Outcome, Task, failure, run_task
from vlnbench.rollout.executor import NO_BATCH, EnvSetup, Limits, Timings, close, prepare, unusable
from vlnbench.util.gpu_memory import first_line, is_gpu_memory
from vlnbench.util.loading import describe, import_string, own_code
from vlnbench.util.processes.place import Place


class Inline:
    """The executor for notebooks and tests; see `Executor`.

    agent, env: those that are there already, in place of what `load` and `set_up` make; closed with the rest.
    catches: exceptions are outcomes, otherwise they are raised. A crash or a hang takes the process with it, and
    of `Limits` only `answers` matters.
    """

    agent: AgentFacts
    simulator: str

    def __init__(self, agent: Agent | None = None, env: Env | None = None, catches: bool = True) -> None:
        self._agent, self._env, self._catches = agent, env, catches
        self._place = Place()
        if agent is not None:
            self.agent = facts_of(agent, type(agent).__name__)
        if env is not None:
            self.simulator = env.simulator

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, name: str, options: AgentOptions) -> AgentFacts:
        with self._place.within():
            self._agent = load_agent(name, options)
            self.agent = facts_of(self._agent, name)
        return self.agent

    def set_up(self, setup: EnvSetup) -> None:
        if self._env is not None:
            self._env.close()
        try:
            with self._place.within():
                code, _ = own_code(setup.factory)
                env: Env = import_string(setup.factory)(*setup.arguments)
                prepare(env)
                self._env, self.simulator = env, said.simulator(env, code)
        except (UsageError, RunError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RunError(unusable(describe(error))) from error

    def check(self, episodes: Sequence[Episode]) -> None:
        assert self._env is not None
        try:
            self._env.check(episodes)
        except (UsageError, RunError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RunError(unusable(describe(error))) from error

    def run(self, tasks: Iterable[Task], limits: Limits = NO_BATCH) -> Generator[Outcome, None, None]:
        assert self._env is not None
        assert self._agent is not None
        for task in tasks:
            kept = Kept() if tells(self._agent, limits.answers) else None
            try:
                with self._place.within():
                    rollout = run_task(self._env, self._agent, task, kept)
            except (UsageError, RunError, KeyboardInterrupt):
                raise
            except BaseException as error:
                if is_gpu_memory(error):
                    raise GpuMemoryError(f"out of GPU memory with one episode: {first_line(error)}") from error
                if not self._catches:
                    raise
                outcome = failure(task, error)
            else:
                outcome = Outcome(task, rollout)
            yield replace(outcome, answers=tuple(kept.all)) if kept else outcome

    def remarks(self) -> str:
        return "" if self._agent is None else remarks_of(self._agent)

    def timings(self) -> Timings:
        return Timings(1, 1)

    def close(self) -> None:
        for each in (self._env, self._agent):
            close(each)
