"""Base class for agents that think about one episode at a time."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from agents.common.slots import Copies
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Answer, Conventions, Episode, Observation, Scalar, Sensor


class EpisodeAgent:
    """Turns a one-episode agent into an `Agent`: every episode is driven by a copy of the agent as it was made.

    Subclasses write `act_one` and, if they carry state, `begin`. The class attributes are defaults to override.

    Episodes share nothing that changes. Whatever `self` and the class hold (lists, arrays, tensors, modules,
    generators of random numbers) each copy has for itself, so write to it as if there were one episode at a time.
    Shared are parameters and large buffers of torch modules, which may not be written to (that ends the run with
    a line), and what `shared` names: attributes that never change and are too large to copy, or cannot be copied,
    such as the client of a server or a compiled module. Open files and running generators belong into `begin`.
    Not seen are variables of Python modules and what functions enclose: keep state in `self`.
    """

    sensors: frozenset[Sensor] = frozenset()
    privileged: bool = False
    expects: Conventions = Conventions()
    identity: Mapping[str, Scalar] = {}
    shared: tuple[str, ...] = ()
    reads: Sequence[str | Path] = ()
    """Files beside code that decide its answers, such as weights: changed, they make another run."""

    def __new__(cls, *args: object, **options: object) -> Any:
        """Refuses a class without `act_one`, whose name may be misspelled."""
        if cls.act_one is EpisodeAgent.act_one and cls.act is EpisodeAgent.act:
            own = [name for name in dir(cls) if name not in dir(EpisodeAgent)]
            near = difflib.get_close_matches("act_one", own, 1)
            hint = f" ({near[0]} is not called)" if near else ""
            raise UsageError(f"agent {cls.__name__}: define act_one(self, observation), the next action{hint}")
        return super().__new__(cls)

    @cached_property
    def _running(self) -> dict[int, EpisodeAgent]:
        return {}

    @cached_property
    def _copies(self) -> Copies:
        """Made with the first episode: all constructors have run then."""
        return Copies(self, EpisodeAgent, ("_running", "_copies"))

    def begin(self, episode: Episode, seed: int) -> None:
        """Start an episode."""

    def act_one(self, observation: Observation) -> Action:
        """The next action of the running episode."""
        raise NotImplementedError

    def say(self, text: str, **known: Any) -> None:
        """Tell what a model said, in `act_one`; it is kept beside the row. known: other fields of `Answer`."""
        vars(self).setdefault("_said", []).append(Answer(text, **known))

    def answered(self, slot: int) -> list[Answer]:
        """What was said at the last step of the episode in a slot."""
        said: list[Answer] = vars(self._running[slot]).pop("_said", [])
        return said

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self._running[slot] = self._copies.new()
        self._running[slot].begin(episode, seed)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        for slot in observations:
            vars(self._running[slot]).pop("_said", None)
        actions = {slot: self._running[slot].act_one(observation) for slot, observation in observations.items()}
        self._copies.check()
        return actions

    def watch(self, observations: Mapping[int, Observation]) -> None:
        """See observations on which somebody else acts. Nothing to do for agents that plan no further than a step
        and remember nothing."""

    def close(self) -> None:
        self._running.clear()
