"""The third part of a family: what the planner runs in shapes, of training and of acting. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from vlnbench.errors import UsageError
from vlnbench.training.family.changes import Change

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Probe:
    """A batch to plan with: what `Trains.loss` takes.

    tokens: positions of one sample. supervised: those with a label. width: scores per supervised position.
    """

    batch: Mapping[str, Any]
    tokens: int
    supervised: int
    width: int


@dataclass(frozen=True)
class Acting:
    """What an agent needs while it acts, at its largest.

    caches: bytes that stay on the GPU from step to step, at their longest, by name. passes: what is computed in a
    step, by name, to be run in shapes. notes: lines for people.
    """

    caches: Mapping[str, int]
    passes: Mapping[str, Callable[[], object]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Published:
    """What a model's own published program does otherwise than the trainer here, as far as memory depends on it.

    program: which one. logit_bytes: per entry of the vocabulary and position, of each of the tensors that are
    there while the loss is taken. bucket: elements of DeepSpeed's reduce bucket. communication: bytes of its
    buffers where it overlaps with work. spread: the shortest and the longest batch, as shares of the planned one.
    """

    program: str
    logit_bytes: tuple[int, ...]
    bucket: int
    communication: int = 0
    spread: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True)
class Kept:
    """Numbers that `--feature-cache` keeps, in the network's type: of every frame, and of every window."""

    frame: int = 0
    window: int = 0


LOGIT_BYTES = (2, 4, 4, 4, 4)
"""Logits in bfloat16, their float32 copy, its shifted copy, logarithms and their gradient: transformers' loss."""
OVERLAP = 4.5
"""How often DeepSpeed has its buckets where communication overlaps with work (documents of transformers)."""
ALLGATHER_BUCKET = 500_000_000
"""Elements of DeepSpeed's bucket for putting weights together, where nothing is said."""


class Plans(Protocol):
    """What planning the memory of a family takes; `config` is what its `Checkpoints` say of a network.

    Derive from this class; what has a body here need not be defined. Planning a training asks `Trains` as well,
    for parts and loss. `vlnbench.conformance.PlansConformance` tests one.
    """

    # to train; `options` are the spec's planning options

    def build(self, config: Any, options: Any) -> nn.Module:
        """The network with random weights in torch's default dtype, on its default device."""
        ...

    def probe(self, config: Any, options: Any, device: str) -> Probe:
        """A batch of samples of the length that `options` say."""
        ...

    def flops(self, config: Any, options: Any, parts: Mapping[str, int], tokens: int) -> float:
        """Operations of training on one window, roughly; `parts`: elements of every part, `tokens` of a window."""
        return 6.0 * sum(parts.values()) * tokens

    def kept(self, config: Any, options: Any) -> Kept | None:
        """What a feature cache takes; None where that is not known."""
        return None

    def changes(self, options: Any) -> Iterator[Change]:
        """What of this family's own options could be changed to need less memory; see `Change`."""
        return iter(())

    def published(self, config: Any, options: Any) -> Published | None:
        """What the model's own program does otherwise; None where that is not known."""
        return None

    # to act; `options` are the spec's inference options

    def inference_network(self, config: Any, options: Any) -> nn.Module:
        """The network in torch's default dtype, on its default device."""
        raise UsageError("what acting needs cannot be planned for this family")

    def inference(self, network: Any, config: Any, options: Any) -> Acting:
        """What stays from step to step and what a step computes; `network` is that of `inference_network`."""
        raise NotImplementedError

    def quantized(self, network: Any, kind: str) -> nn.Module:
        """That network as its agent keeps it with `--quantize KIND`."""
        raise UsageError("--quantize: agents of this family do not keep weights in fewer bits; leave it out")

    def inference_changes(self, options: Any) -> Iterator[Change]:
        """What of this family's own options could be changed so that acting needs less."""
        return iter(())
