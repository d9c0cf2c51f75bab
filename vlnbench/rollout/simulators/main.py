"""A simulator process: makes an environment and runs the episodes it is sent, asking the main process to act.

Started by `vlnbench.rollout.engine.Worker`, or forked. Imports little: what is heavy comes with the environment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions, Env, Episode, Observation, Scalar, Sensor
from vlnbench.rollout import said
from vlnbench.rollout.episode import SLOT, Task, run_task
from vlnbench.rollout.simulators.channel import (
    Check,
    Checked,
    Failed,
    Finished,
    Frames,
    Observed,
    Preparing,
    Ready,
    Setup,
    Shrink,
    Watched,
)
from vlnbench.traits import LoadsAhead, Shrinks
from vlnbench.util.loading import describe, import_string, own_code, stack
from vlnbench.util.processes.child import HungUp, Line, live_and_die_with_parent


def main(descriptor: int, memory: int, preload: str) -> None:
    """Serve the main process at the other end of a pipe until it closes it.

    preload: as of `engine.Worker`.
    """
    live_and_die_with_parent()
    line = Line(descriptor)
    with contextlib.suppress(HungUp):
        try:
            load_ahead(preload)
        except Exception as error:
            line.receive()
            line.send(_failed(error))
            return
        _Simulator(line, memory).serve()


def load_ahead(preload: str) -> None:
    """Import what an environment needs. preload: as of `engine.Worker`."""
    if preload:
        factory = import_string(preload)
        if isinstance(factory, LoadsAhead):
            factory.load_ahead()


class _Simulator:
    """The environment of this process and what is done with it."""

    def __init__(self, line: Line, memory: int) -> None:
        self._line, self._memory = line, memory
        self._setup: Setup
        self._env: Env | None = None
        self._agent: _RemoteAgent

    def serve(self) -> None:
        while True:
            message: Setup | Check | Task = self._line.receive()
            try:
                self._line.send(self._answer(message))
            except _GivenUp:
                pass
            except UsageError as error:
                self._line.send(_failed(error))
            except Exception as error:
                report = _failed(error)
                if isinstance(message, Task):  # the next episode must not feel what broke this one
                    self._make_env()
                self._line.send(report)

    def _answer(self, message: Setup | Check | Task) -> Ready | Checked | Finished:
        if isinstance(message, Setup):
            self._setup = message
            code, _ = own_code(message.factory)  # before the environment may go to another folder
            env = self._make_env()
            for step in said.steps(env):
                self._line.send(Preparing(step))
            simulator = said.simulator(env, code)
            frames = Frames(self._memory, env.embodiment, message.sensors)
            self._agent = _RemoteAgent(self._line, frames, message.sensors, self._shrink)
            return Ready(simulator, env.embodiment)
        assert self._env is not None
        if isinstance(message, Check):
            self._env.check(message.episodes)
            return Checked()
        return Finished(run_task(self._env, self._agent, message))

    def _shrink(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A frame as the agent wants it, if the environment can see to that, and if it becomes smaller by it."""
        size, env = self._setup.rgb_size, self._env
        smaller = size is not None and size[0] * size[1] <= frame.shape[0] * frame.shape[1]
        return env.shrink(frame, *size) if size is not None and smaller and isinstance(env, Shrinks) else frame

    def _make_env(self) -> Env:
        """Another environment in place of the present one."""
        if self._env is not None:
            self._env.close()
            self._env = None
        env: Env = import_string(self._setup.factory)(*self._setup.arguments)
        self._env = env
        return env


class _GivenUp(BaseException):
    """The main process wants no more of this episode."""


class _RemoteAgent:
    """The agent as `run_episode` sees it from here: every question goes to the main process.

    What the real agent may not see is taken out there; frames it did not ask for are not sent in the first place.
    """

    privileged = True
    expects = Conventions()
    identity: Mapping[str, Scalar] = {}

    def __init__(self, line: Line, frames: Frames, sensors: frozenset[Sensor], shrink: Shrink) -> None:
        self.sensors = sensors
        self._line = line
        self._frames, self._shrink = frames, shrink
        self._ahead: list[Action] = []

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        """The main process, which chose the episode, resets the agent when the first observation arrives."""

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        first, *self._ahead = self._ask(self._frames.put(observations[SLOT], self._shrink))
        return {SLOT: first}

    def ahead(self, slot: int) -> list[Action]:
        return self._ahead

    def watch(self, observations: Mapping[int, Observation]) -> None:
        self._ask(Watched(self._frames.put(observations[SLOT], self._shrink)))

    def _ask(self, message: Observed | Watched) -> Any:
        self._line.send(message)
        answer = self._line.receive()
        if answer is None:
            raise _GivenUp
        return answer

    def close(self) -> None:
        """Nothing to free."""


def _failed(error: Exception) -> Failed:
    if isinstance(error, UsageError):
        return Failed(str(error), "", usage=True)
    return Failed(describe(error), stack(error), usage=False)
