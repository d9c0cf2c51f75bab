"""What a family gives to objectives that learn from what its network does: it acts by chance, and scores that.

`agents.streamvln.samples` is one to read beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vlnbench.interfaces import Action, Agent
from vlnbench.training.family.trains import SetContent


@dataclass(frozen=True)
class Sampling:
    """How a network acts by chance: temperature, share of the likeliest tokens, tokens per answer and answers per
    walk at most (None: any number)."""

    temperature: float
    top_p: float = 1.0
    answer_tokens: int = 24
    turn_cap: int | None = None


@dataclass(frozen=True)
class Recorded:
    """What a policy did for one prompt or in one walk.

    samples: windows for `Trains.collate`, whose labels are the tokens that were drawn and nothing else.
    tokens: how many of them each window has. log_probabilities: theirs when they were drawn, in order.
    answers: how many there were, `formed` of them in the expected format. actions: of the answer to a prompt.
    cut: the walk's last STOP is the end of its answers, not the network's.
    """

    samples: tuple[Any, ...]
    tokens: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    answers: int
    formed: int
    actions: tuple[Action, ...] = ()
    cut: bool = False


class Scored(NamedTuple):
    """Of every drawn token of a batch, in order: log-probability, with gradient, and entropy of its distribution,
    in nats, both float32 (tokens,)."""

    log_probabilities: Tensor
    entropies: Tensor


def scored(logits: Tensor, tokens: Tensor, temperature: float) -> Scored:
    """Log-probabilities and entropies of tokens (tokens,) under logits (tokens, vocabulary) at a temperature."""
    logs = torch.log_softmax(logits / temperature, dim=-1)
    with torch.no_grad():
        entropies = -(logs.exp() * logs).sum(dim=-1)
    return Scored(logs.gather(1, tokens[:, None])[:, 0], entropies)


@dataclass(frozen=True)
class Question:
    """A prompt for an answer: what the policy needs for it, and the expert's actions."""

    prompt: Any
    expected: tuple[Action, ...]


class Questions(Protocol):
    """Prompts made from a collected set, numbered from 0; which are the same every time."""

    def __len__(self) -> int: ...

    def question(self, index: int, seed: str) -> Question:
        """The prompt; what is drawn for it comes from `seed`."""
        ...


class Policy(Protocol):
    """A network that acts by chance. What it draws depends on seeds alone, not on what is asked beside it."""

    def renew(self) -> None:
        """The network's weights have changed, or are about to be used for the first time."""
        ...

    def agent(self) -> Agent:
        """Acts in simulators. It remembers each episode until `recorded` is asked."""
        ...

    def recorded(self, episode_id: str, seed: int) -> Recorded:
        """What the agent did in the episode that began so, which it forgets now. Raises KeyError for none."""
        ...

    def questions(self, sets: Sequence[SetContent]) -> Questions:
        """Prompts from collected sets. Raises UsageError for sets without actions to compare with."""
        ...

    def answer(self, prompts: Sequence[Any], seeds: Sequence[int]) -> list[Recorded]:
        """The answers to prompts."""
        ...


@runtime_checkable
class GivesLogProbabilities(Protocol):
    """Trait of a `Trains` whose networks act by chance, and can learn from what that was worth."""

    def policy(self, model: nn.Module, base: Path, options: Any, sampling: Sampling) -> Policy:
        """A network, which goes on being trained, as a policy. `base`: the folder that it was loaded from."""
        ...

    def log_probabilities(self, model: Any, batch: Mapping[str, Any], temperature: float) -> Scored:
        """A forward pass over collated samples. `model` is the network or DeepSpeed's engine around it.

        Only labeled positions meet the vocabulary.
        """
        ...

    def cache_bytes(self, config: Any, options: Any) -> int:
        """For the planner: bytes of keys and values of one position, kept while the network acts."""
        ...
