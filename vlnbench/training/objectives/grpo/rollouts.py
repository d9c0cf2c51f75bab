"""What a policy did and what that was worth: the contract between the objective and where rollouts come from.

An update asks for groups: several answers to a prompt, or several walks from a start, which differ in their seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from vlnbench.training.family.policy import Policy, Recorded
from vlnbench.training.objectives.grpo.rewards import Completion, Rewards


class RolloutRequest(NamedTuple):
    """A rollout to be made: prompt by number, place in its group, and what its draws depend on beside."""

    prompt: int
    member: int
    draw: str


@dataclass(frozen=True)
class Rollout:
    """A rollout: what was recorded, and each reward; or why it does not count.

    missing: `unreachable` (no way to the goal, so rewards mean nothing) or `failed` (a simulator did), with a
    `note` for people. steps: actions. simulator_s: seconds of the simulator. completion: what the
    rewards looked at.
    """

    recorded: Recorded | None
    rewards: tuple[float, ...] = ()
    steps: int = 0
    stopped: bool = False
    success: bool | None = None
    simulator_s: float = 0.0
    missing: str = ""
    note: str = ""
    completion: Completion | None = None


class Rollouts(Protocol):
    """Where completions come from. Made with (options, trains); reads its data then, or raises UsageError."""

    prompts: int
    longest: int
    """Tokens of a completion at most, for the aggregation that divides by it."""
    rewards: Rewards

    def manifest(self) -> Mapping[str, Any]:
        """What can change the result, for the run's manifest."""
        ...

    def describe(self) -> str:
        """What is asked, for people."""
        ...

    def counts(self) -> Mapping[str, Any]:
        """How much there is, for the run's counts."""
        ...

    def texts(self) -> Iterator[str]:
        """What is said, for tokenizers that are learned."""
        ...

    def begin(self, policy: Policy, beat: Callable[[], None]) -> None:
        """Get ready. `beat` is called whenever something is done, for those who watch for hangs."""
        ...

    def make(self, requests: Sequence[RolloutRequest], update: int) -> list[Rollout]:
        """The completions, in the order of the requests."""
        ...

    def close(self) -> None:
        """End what was started. Safe to call twice."""
        ...


def prompts_of(update: int, count: int, prompts: int, seed: int) -> list[int]:
    """The prompts of an update (from 1): `count` different ones of a shuffled epoch.

    An epoch has as many whole updates as there are prompts for; the few that are left have their turn in other
    epochs, as in TRL. An update that went on in the next epoch could draw a prompt twice, in two groups that are
    one.
    """
    epoch, place = divmod(update - 1, prompts // count)
    order = list(range(prompts))
    random.Random(f"{seed}/prompts/{epoch}").shuffle(order)
    return order[place * count : (place + 1) * count]


def other_prompts(
    update: int, attempt: int, count: int, prompts: int, seed: int, taken: Sequence[int], tried: Sequence[int]
) -> list[int]:
    """Prompts to be tried instead of some, at random: none that is `taken`.

    None that was tried, either, where there are enough others; what is tried again is drawn otherwise.
    """
    free = sorted(set(range(prompts)) - set(taken))
    fresh = sorted(set(free) - set(tried))
    return random.Random(f"{seed}/again/{update}/{attempt}").sample(fresh if len(fresh) >= count else free, count)
