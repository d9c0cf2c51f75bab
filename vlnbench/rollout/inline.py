"""One agent and one environment in this process: no process to start, and none that a fault could be kept in."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from vlnbench.errors import GpuMemoryError, RunError, UsageError
from vlnbench.interfaces import Agent, Env, Episode
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.agents import AgentFacts, facts_of, load_agent, remarks_of
from vlnbench.rollout.episode import Outcome, Task, failure, run_task
from vlnbench.rollout.executor import NO_BATCH, EnvSetup, Limits, Timings, prepare
from vlnbench.util.gpu_memory import first_line, is_gpu_memory
from vlnbench.util.loading import import_string


class Inline:
    """The executor for notebooks and tests; see `Executor`.

    agent, env: those that are there already, in place of what `load` and `set_up` make; closed with the rest.
    catches: exceptions are outcomes, otherwise they are raised. A crash or a hang takes the process with it, and
    `Limits` does not matter.
    """

    agent: AgentFacts
    simulator: str

    def __init__(self, agent: Agent | None = None, env: Env | None = None, catches: bool = True) -> None:
        self._agent, self._env, self._catches = agent, env, catches
        if agent is not None:
            self.agent = facts_of(agent, type(agent).__name__)
        if env is not None:
            self.simulator = env.simulator

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, name: str, options: AgentOptions) -> AgentFacts:
        self._agent = load_agent(name, options)
        self.agent = facts_of(self._agent, name)
        return self.agent

    def set_up(self, setup: EnvSetup) -> None:
        if self._env is not None:
            self._env.close()
        try:
            env: Env = import_string(setup.factory)(*setup.arguments)
            prepare(env)
        except (UsageError, RunError):
            raise
        except Exception as error:
            raise RunError(f"a simulator cannot be used: {type(error).__name__}: {error}") from error
        self._env, self.simulator = env, env.simulator

    def check(self, episodes: Sequence[Episode]) -> None:
        assert self._env is not None
        self._env.check(episodes)

    def run(self, tasks: Iterable[Task], limits: Limits = NO_BATCH) -> Generator[Outcome, None, None]:
        assert self._env is not None
        assert self._agent is not None
        for task in tasks:
            try:
                rollout = run_task(self._env, self._agent, task)
            except (UsageError, RunError):
                raise
            except Exception as error:
                if is_gpu_memory(error):
                    raise GpuMemoryError(f"out of GPU memory with one episode: {first_line(error)}") from error
                if not self._catches:
                    raise
                yield failure(task, error)
            else:
                yield Outcome(task, rollout)

    def remarks(self) -> str:
        return "" if self._agent is None else remarks_of(self._agent)

    def timings(self) -> Timings:
        return Timings(1, 1)

    def close(self) -> None:
        for each in (self._env, self._agent):
            if each is not None:
                each.close()
