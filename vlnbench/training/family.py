"""What training and planning need to know of a kind of model. Loads nothing heavy.

A family is described twice: by a `FamilySpec`, from which the command line is made, and by a `ModelFamily`, which
knows the network and is loaded when it is needed. `agents.table` lists the families that ship with vlnbench;
others are named by import string. `vlnbench.conformance.FamilyConformance` tests one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.training.memory.inference_options import InferenceOptions
from vlnbench.training.options import PlanOptions, TrainOptions
from vlnbench.util.loading import import_string

if TYPE_CHECKING:
    import random

    import torch
    from torch import Tensor, nn

    from vlnbench.interfaces import Action
    from vlnbench.training.memory.changes import Change


@dataclass(frozen=True)
class Source:
    """Where a network comes from. `path`, a folder or a file, is None for presets and sizes, which have a name."""

    kind: Literal["checkpoint", "preset", "sizes"]
    name: str
    path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class FamilySpec:
    """A family as the command line sees it.

    training, planning, inference: classes of its options of training, of planning its memory and of planning that
    of acting; None where that cannot be planned, and `unplanned` says why of training. implementation: import
    string of its `ModelFamily`. recognizes: whether a path is a checkpoint of this family; reads a few lines at
    most. agent: who evaluates its checkpoints, a name or an import string. presets: names of networks that can be
    made with random weights. sizes: names of networks that can only be planned. set_files: files of which one says
    what the folder of a training set holds.
    """

    name: str
    training: type[TrainOptions]
    implementation: str
    recognizes: Callable[[Path], bool]
    agent: str
    planning: type[PlanOptions] | None = None
    inference: type[InferenceOptions] | None = None
    unplanned: str = ""
    presets: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    set_files: tuple[str, ...] = (TRAJECTORIES,)

    def load(self) -> ModelFamily:
        """The implementation."""
        made: ModelFamily = import_string(self.implementation)()
        return made

    def check_plannable(self) -> type[PlanOptions]:
        """The class of its planning options. Raises UsageError where memory cannot be planned."""
        if self.planning is None:
            why = self.unplanned or "it does not say what a step takes in"
            raise UsageError(f"the memory of family {self.name!r} cannot be planned: {why}")
        return self.planning

    def check_inference(self) -> type[InferenceOptions]:
        """The class of its options for planning to act. Raises UsageError where that cannot be planned."""
        if self.inference is None:
            raise UsageError(f"family {self.name!r}: what acting needs cannot be planned")
        return self.inference


@dataclass(frozen=True)
class Placement:
    """Where and in which precision a network trains; `notes` are what else the run's manifest says about it."""

    dtype: torch.dtype
    notes: Mapping[str, str]

    @property
    def dtype_name(self) -> str:
        """The dtype's name as options and config files write it."""
        return str(self.dtype).removeprefix("torch.")


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


@dataclass(frozen=True)
class Probe:
    """A batch to plan with: what `ModelFamily.loss` takes.

    tokens: positions of one sample. supervised: those with a label. width: scores per supervised position.
    """

    batch: Mapping[str, Any]
    tokens: int
    supervised: int
    width: int


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


@dataclass(frozen=True)
class Acting:
    """What an agent needs while it acts, at its largest.

    caches: bytes that stay on the GPU from step to step, at their longest, by name. passes: what is computed in a
    step, by name, to be run in shapes. notes: lines for people.
    """

    caches: Mapping[str, int]
    passes: Mapping[str, Callable[[], object]]
    notes: Sequence[str] = ()


Scorer = Callable[[Path, int], Iterator[Answer]]
"""Answers on the walks of a set's folder, so many windows at once; every step once for each instruction."""

Known = Callable[[str], "Tensor | None"]
"""Features of a frame by its key, None where they are not known."""


class ModelFamily(Protocol):
    """A kind of network: how it is made, what its parts are, what it trains on, what a step of it takes.

    Derive from this class; what has a body here need not be defined. `options` are of the spec's classes, those of
    training unless said otherwise. All of `vlnbench.training` works through these methods and knows no network.
    """

    # checkpoints

    def config(self, source: Source, options: Any) -> Any:
        """The network's sizes, for `options` of training or planning; reads no weight.

        Raises UsageError for a checkpoint that is not of this family and for options that do not suit it.
        """
        ...

    def settled(self, source: Source, options: Any) -> Any:
        """Options with the checkpoint's own say in the place of those that were not given.

        Asked once, where a command knows its checkpoint: whoever comes later finds every option that decides what
        the network sees. Options of training, of planning and of planning to act alike.
        """
        return options

    def content_hash(self, path: Path, options: Any) -> str:
        """Hash of all files that training from a checkpoint reads."""
        ...

    def create(self, preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
        """Write a checkpoint folder with random weights. The same arguments give the same bytes."""
        raise UsageError(f"no preset {preset!r}")

    def placement(self, options: Any, device: torch.device) -> Placement:
        """Precision and the like. Raises UsageError for what this machine cannot do."""
        ...

    def load(self, path: Path, options: Any, placement: Placement) -> nn.Module:
        """The network of a checkpoint, on the CPU, as `options` want it trained."""
        ...

    def shapes(self, model: nn.Module) -> nn.Module:
        """A network like this one on the meta device: parameters have shapes and no memory."""
        ...

    def save(self, model: nn.Module, folder: Path, base: Path, options: Any) -> None:
        """Write a checkpoint folder, which appears at its name only when complete. `base` is what was loaded."""
        ...

    # parts

    def part_of(self, name: str) -> str:
        """The tunable part that a parameter belongs to."""
        ...

    def can_train(self, name: str) -> bool:
        """Whether a parameter takes part in the loss; one that does not stays frozen with any choice of parts."""
        return True

    def also_trains(self, name: str, options: Any) -> bool:
        """Whether the family's own options have a parameter train though its part is not tuned."""
        return False

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        """Whether weight decay applies to a parameter."""
        return parameter.ndim > 1

    def remark(self, model: nn.Module, options: Any) -> str:
        """What to know about what trains and what does not, beside the table of parts; empty for nothing."""
        return ""

    def adapted(self, model: nn.Module) -> list[str]:
        """Names of the linear layers that low-rank adapters go to."""
        return []

    def is_hidden(self, name: str) -> bool:
        """Whether a matrix lies inside the network, being neither an embedding nor the output layer (for Muon)."""
        return True

    def uneven(self, model: nn.Module) -> list[nn.Module]:
        """Frozen modules that call their own parts more often for one batch than for another.

        ZeRO 3 puts weights together where all ranks call the same module at the same time, and ranks have other
        batches: these are put together whole, once per call of theirs.
        """
        return []

    def enable_checkpointing(self, model: nn.Module) -> None:
        """Recompute activations in the backward pass."""
        raise UsageError("--gradient-checkpointing: this family cannot; give --no-gradient-checkpointing")

    # data

    def read_set(self, folder: Path, options: Any) -> SetContent:
        """What a set's folder holds. Raises UsageError for one that is missing, empty or broken."""
        ...

    def samples(
        self, sets: Sequence[SetContent], model: nn.Module, base: Path, options: Any, known: Known | None
    ) -> list[Samples]:
        """The samples of every set. `known` has the features of frames that need not be decoded."""
        ...

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Samples as a batch; called in the processes that read frames."""
        ...

    # a step

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        """Mean loss of a batch, a scalar. `model` is the network or DeepSpeed's engine around it."""
        ...

    def cost(self, model: nn.Module) -> Callable[[tuple[int, ...]], float] | None:
        """What a window costs by its length (`SetContent.lengths`), in any unit.

        None, unless a batch costs what its windows cost together: only then are they dealt out to ranks so that
        none has more to do than another. The next two methods are needed for that.
        """
        return None

    def masses(self, batch: Mapping[str, Any]) -> list[float]:
        """What each window of a batch counts in its mean loss."""
        raise NotImplementedError

    def weighed(self, batch: dict[str, Any], factors: Sequence[float]) -> dict[str, Any]:
        """A batch whose loss is the sum over its windows of mean loss, mass and factor multiplied."""
        raise NotImplementedError

    def stretches(self, model: nn.Module, cached: bool) -> Stretches:
        """What of the forward pass is timed; `cached`: the features of frames come from the cache."""
        ...

    def features(self, model: nn.Module, device: torch.device) -> Features:
        """What can be kept of the frozen part that the options call CACHED."""
        raise UsageError("--feature-cache: models of this family have no features to keep; leave it out")

    def all_features(self, model: nn.Module, device: torch.device) -> Sequence[Features]:
        """The same where several frozen parts have features to keep, each in an entry of its own.

        `samples` is given one `Known` for all of them, so their keys must differ.
        """
        return [self.features(model, device)]

    def scorer(self, path: Path, device: torch.device) -> Scorer:
        """A checkpoint loaded to be scored on expert walks, as its agent would be asked there."""
        raise UsageError("models of this family cannot be scored on walks")

    # planning; `options` are the spec's planning options

    def build(self, config: Any, options: Any) -> nn.Module:
        """The network with random weights in torch's default dtype, on its default device."""
        ...

    def probe(self, config: Any, options: Any, device: str) -> Probe:
        """A batch of samples of the length that `options` say."""
        ...

    def flops(self, config: Any, options: Any, parts: Mapping[str, int], tokens: int) -> float:
        """Operations of training on one window, roughly; `parts`: elements of every part, `tokens` of a window."""
        return 6.0 * sum(parts.values()) * tokens

    def changes(self, options: Any) -> Iterator[Change]:
        """What of this family's own options could be changed to need less memory; see `memory.changes`."""
        return iter(())

    # planning to act; `options` are the spec's inference options

    def inference_config(self, source: Source, options: Any) -> Any:
        """The network's sizes as `options` let it act; reads no weight. Raises UsageError as `config` does."""
        raise UsageError("what acting needs cannot be planned for this family")

    def inference_network(self, config: Any, options: Any) -> nn.Module:
        """The network in torch's default dtype, on its default device."""
        raise NotImplementedError

    def inference(self, network: Any, config: Any, options: Any) -> Acting:
        """What stays from step to step and what a step computes; `network` is that of `inference_network`."""
        raise NotImplementedError

    def inference_changes(self, options: Any) -> Iterator[Change]:
        """What of this family's own options could be changed so that acting needs less."""
        return iter(())
