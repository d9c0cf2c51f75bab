"""What is said between a lane and its parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vlnbench.interfaces import Conventions, Scalar, Sensor
from vlnbench.rollout.episode import Outcome


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What the parent has to know of an agent that lives in a lane. host: the machine it is on."""

    name: str
    code: str | None
    place: Mapping[str, str]
    sensors: frozenset[Sensor]
    privileged: bool
    expects: Conventions
    identity: Mapping[str, Scalar]
    description: str
    version: str
    host: str

    def differences(self, other: AgentFacts) -> list[str]:
        """What would make results of the two another run."""
        ours, theirs = ({**asdict(each), **each.identity} for each in (self, other))
        own = ("place", "description", "host", "identity")
        return [
            f"{key} {ours.get(key)!r} and {theirs.get(key)!r}"
            for key in sorted({*ours, *theirs})
            if key not in own and ours.get(key) != theirs.get(key)
        ]


@dataclass(frozen=True, slots=True)
class EnvSetup:
    """How a lane makes its environments: import string and arguments. needs: paths that must be there."""

    factory: str
    arguments: tuple[Any, ...]
    sensors: frozenset[Sensor]
    needs: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """See `engine.Engine`."""

    max_batch: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Ran:
    """One outcome, and how many seconds the agent has waited for simulators since the last one."""

    outcome: Outcome
    waited_s: float
