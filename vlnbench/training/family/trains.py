"""The second part of a family: what trains of it, on what, and what a step minimizes. Loads nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from vlnbench.errors import UsageError

if TYPE_CHECKING:
    import random

    import torch
    from torch import Tensor, nn

    from vlnbench.interfaces import Action


@dataclass(frozen=True)
class PartRule:
    """A line of a family's table of parts: which parameters it is of, their part, and how they train.

    pattern: regular expression that the beginning of a parameter's name matches; "" matches every name. trains:
    with its part; never, for what takes no part in the loss; or always, though its part is not tuned. decays: what
    weight decay applies to. hidden: whether matrices lie inside the network, being neither an embedding nor the
    output layer (for Muon).
    """

    pattern: str
    part: str
    trains: Literal["with its part", "never", "always"] = "with its part"
    decays: Literal["matrices", "all but biases"] = "matrices"
    hidden: bool = True


def rule_of(rules: Sequence[PartRule], name: str) -> PartRule:
    """The first rule of a table that a parameter's name matches. Raises KeyError where there is none."""
    for rule in rules:
        if re.match(rule.pattern, name):
            return rule
    raise KeyError(name)


class SetContent(Protocol):
    """What one training set holds.

    file: the file whose bytes say what that is. counts: how many there are of what. windows: samples per epoch.
    """

    @property
    def file(self) -> Path: ...

    @property
    def windows(self) -> int: ...

    @property
    def counts(self) -> Mapping[str, int]: ...

    def texts(self) -> Iterator[str]:
        """What is said in it, for tokenizers that are learned."""
        ...

    def lengths(self) -> Sequence[tuple[int, ...]]:
        """Of every window how long it is, in an order that sorts alike ones together."""
        ...


@runtime_checkable
class LeavesOut(Protocol):
    """A `SetContent` of which something is not learned from; that is said where the set is read."""

    @property
    def left_out(self) -> Sequence[str]:
        """A line for each kind of what is not, with the first of it."""
        ...


class Samples(Protocol):
    """A dataset whose samples are numbered from 0. It goes to the processes that read frames, so it is pickled."""

    def __len__(self) -> int: ...

    def sample(self, index: int, rng: random.Random) -> Any:
        """Build one sample; everything that is drawn comes from `rng`."""
        ...


@dataclass(frozen=True)
class Stretches:
    """The stretches of a forward pass that are timed: names, and the modules where the first starts and ends.

    The second lasts from there to the network's end. With `middle` they are three: the first ends where that ends.
    """

    names: tuple[str, ...]
    start: nn.Module
    end: nn.Module
    middle: nn.Module | None = None


@dataclass(frozen=True)
class Features:
    """What a frozen part makes of frames, to be kept.

    tower: the part. encode: features (N, *shape) that a tower has of pixels (N, ...), in `dtype`; a first size of
    -1 in `shape` is any number of rows. fingerprint: hash of all that features depend on beside the frame. entry:
    the batch's entry that holds the frames. phase: the stretch of the forward pass that this is of, "" for the
    first.
    """

    tower: nn.Module
    encode: Callable[[nn.Module, Tensor], Tensor]
    shape: tuple[int, ...]
    dtype: torch.dtype
    fingerprint: str
    entry: str
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a network answers at a step of an expert's walk, with the expert's actions before it known.

    trajectory: name of the walk's folder, or <scene>_questions_<number> for a question, which is a first step.
    expected: the expert's action; before: the one before it, None at the first step. predicted: the likeliest
    answer, None if that is no action. loss: of `expected`, in nats.
    """

    trajectory: str
    step: int
    expected: Action
    before: Action | None
    predicted: Action | None
    loss: float


Scorer = Callable[[Path, int], Iterator[Answer]]
"""Answers on the walks of a set's folder, so many windows at once; every step once for each instruction."""

Known = Callable[[str], "Tensor | None"]
"""Features of a frame by its key, None where they are not known."""


class Weighting(Protocol):
    """How the windows of a batch share its loss: what one costs, and what it counts.

    Given only where a batch costs what its windows cost together: then they are dealt out to ranks so that none
    has more to do than another.
    """

    def cost(self, length: tuple[int, ...]) -> float:
        """What a window costs by its length (`SetContent.lengths`), in any unit."""
        ...

    def masses(self, batch: Mapping[str, Any]) -> list[float]:
        """What each window of a batch counts in its mean loss."""
        ...

    def weighed(self, batch: dict[str, Any], factors: Sequence[float]) -> dict[str, Any]:
        """A batch whose loss is the sum over its windows of mean loss, mass and factor multiplied."""
        ...


class Trains(Protocol):
    """What trains of a family's networks, on what, and what a step of it minimizes.

    Derive from this class; what has a body here need not be defined. `options` are the spec's training options,
    and where there is no set in play its planning options too. Whatever learns from rewards asks for more: see
    `training.family.policy.GivesLogProbabilities`. `vlnbench.conformance.TrainsConformance` tests one.
    """

    # the network

    def parts(self, model: Any, options: Any) -> Sequence[PartRule]:
        """The table of parts, the first match of a name counts; every parameter has one."""
        ...

    def fitted(self, model: Any, options: Any) -> nn.Module:
        """The network that was loaded, as it is trained: with what it needs only for that. Sets have been read."""
        network: nn.Module = model
        return network

    def remark(self, model: Any, options: Any) -> str:
        """What to know about what trains and what does not, beside the table of parts; empty for nothing."""
        return ""

    def adapted(self, model: Any) -> list[str]:
        """Names of the linear layers that low-rank adapters go to."""
        return []

    def uneven(self, model: Any) -> list[nn.Module]:
        """Frozen modules that call their own parts more often for one batch than for another.

        ZeRO 3 puts weights together where all ranks call the same module at the same time, and ranks have other
        batches: these are put together whole, once per call of theirs.
        """
        return []

    def enable_checkpointing(self, model: Any) -> None:
        """Recompute activations in the backward pass."""
        raise UsageError("--gradient-checkpointing: this family cannot; give --no-gradient-checkpointing")

    # data

    def read_set(self, folder: Path, options: Any) -> SetContent:
        """What a set's folder holds. Raises UsageError for one that is missing, empty or broken."""
        ...

    def frames(self, content: Any) -> int | None:
        """Frames of what `read_set` found, each once; None where they are not counted."""
        return None

    def samples(
        self, sets: Sequence[SetContent], model: Any, base: Path, options: Any, known: Known | None
    ) -> list[Samples]:
        """The samples of every set. `known` has the features of frames that need not be decoded."""
        ...

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Samples as a batch; called in the processes that read frames, on samples alone: what making tensors of
        them takes beside, such as a processor, comes with each of them."""
        ...

    # a step

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        """Mean loss of a batch, a scalar. `model` is the network or DeepSpeed's engine around it.

        A batch is what `collate` made, on the CPU: whatever of it is a tensor is moved here.
        """
        ...

    def weighting(self, model: Any) -> Weighting | None:
        """How windows may be dealt out to ranks by what they cost; None where they are not."""
        return None

    def stretches(self, model: Any, cached: bool) -> Stretches:
        """What of the forward pass is timed; `cached`: the features of frames come from the cache."""
        ...

    def features(self, model: Any, device: torch.device) -> Features:
        """What can be kept of the frozen part that the options call CACHED."""
        raise UsageError("--feature-cache: models of this family have no features to keep; leave it out")

    def all_features(self, model: Any, device: torch.device) -> Sequence[Features]:
        """The same where several frozen parts have features to keep, each in an entry of its own.

        `samples` is given one `Known` for all of them, so their keys must differ.
        """
        return [self.features(model, device)]

    def scorer(self, path: Path, device: torch.device) -> Scorer:
        """A checkpoint loaded to be scored on expert walks, as its agent would be asked there."""
        raise UsageError("models of this family cannot be scored on walks")
