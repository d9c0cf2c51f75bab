"""Walks that the expert begins and the network ends: a curriculum from short ways to whole ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from vlnbench.interfaces import Action, Agent, Env, Episode, Observation
from vlnbench.rollout.episode import Rollout, Task, run_episode
from vlnbench.traits import ActsAhead, Watches


@runtime_checkable
class _Shown(Agent, Watches, Protocol):
    """An agent to which can be shown what somebody else does."""


@dataclass(frozen=True, slots=True)
class ExpertFirst:
    """The kind of task in which these actions of the expert come first; the agent sees what they lead to."""

    actions: tuple[Action, ...]

    def run(self, env: Env, agent: Agent, task: Task) -> Rollout:
        """Raises TypeError for an agent that nothing can be shown to."""
        if not isinstance(agent, _Shown):
            raise TypeError("the agent cannot begin behind the expert: it lacks watch(observations)")
        led = _Led(agent, self.actions)
        return run_episode(env, led, task.episode, seed=task.seed, max_steps=task.max_steps)


class _Led:
    """An agent in whose stead the expert acts first."""

    def __init__(self, agent: _Shown, actions: Sequence[Action]) -> None:
        self._agent, self._first = agent, actions
        self._coming: deque[Action] = deque()
        self.sensors, self.privileged, self.expects = agent.sensors, agent.privileged, agent.expects
        self.identity = agent.identity

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self._coming = deque(self._first)
        self._agent.reset(slot, episode, seed)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        if not self._coming:
            return self._agent.act(observations)
        self._agent.watch(observations)
        action = self._coming.popleft()
        return dict.fromkeys(observations, action)

    def ahead(self, slot: int) -> Sequence[Action]:
        return self._agent.ahead(slot) if not self._coming and isinstance(self._agent, ActsAhead) else ()

    def close(self) -> None:
        self._agent.close()
