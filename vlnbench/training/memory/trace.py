"""What one forward and backward pass of a network allocates, found by running its real code in shapes only.

No weights are made, no GPU is needed: a pass of the 8 B network takes seconds. Nothing is extrapolated over layers
or samples.
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from vlnbench.training.family.checkpoints import Source
from vlnbench.training.family.plans import Plans, Probe
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.family.trains import Trains
from vlnbench.training.memory.tracker import LiveMemory, fused_kernels
from vlnbench.training.options import PlanOptions
from vlnbench.training.parts import Group, freeze, groups, part_of

Phase = Literal["forward", "backward"]

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def _no_events() -> array[int]:
    return array("q")


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the pass. Bytes are at the stretch's peak and hold neither weights nor finished gradients.

    `logits`: the part of `peak` in tensors as wide as the vocabulary. `gradient`: elements of the parameter whose
    gradient was finished at the stretch's end (it is in `peak`, too), 0 for none. `held`: of a forward pass what
    is kept for the backward one, but for logits. `events`: as `LiveMemory` has them, numbered over the whole pass.
    """

    phase: Phase
    peak: int
    logits: int
    gradient: int
    held: int = 0
    events: array[int] = field(default_factory=_no_events, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Trace:
    """A network and its pass.

    `parts`: elements of the tunable parts (adapters count as "lora"), trained or not. `groups`: the sizes of the
    tensors of each of the trainer's parameter groups, in order. `largest`: elements of the largest tensor.
    `tokens`: positions of one sample, `supervised`: those with a label. `segments`: the pass in order. `hidden`:
    the sizes of the trainable matrices inside the network. `cache`: bytes of keys and values of one position, kept
    while the network acts, 0 where it does not; `sample`: bytes of one sample's tensors. `whole`:
    elements of the largest module that ZeRO 3 puts together as one. `sizes`: elements of every parameter, in
    order.
    """

    parts: Mapping[str, int]
    groups: tuple[tuple[int, ...], ...]
    largest: int
    tokens: int
    supervised: int
    vocab_size: int
    segments: tuple[Segment, ...]
    hidden: tuple[int, ...] = ()
    cache: int = 0
    sample: int = 0
    whole: int = 0
    sizes: tuple[int, ...] = ()

    @property
    def parameters(self) -> int:
        """Elements of all parameters."""
        return sum(self.parts.values())

    @property
    def trainable(self) -> int:
        """Elements of all trainable parameters."""
        return sum(map(sum, self.groups))


Loss = Callable[[Any, Mapping[str, Any]], Tensor]
"""The loss of a network on a batch."""


class Traced(Protocol):
    """What of an objective a pass depends on; see `objective.StepMemory`."""

    def loss(self, trains: Trains) -> Loss: ...

    def cache(self, trains: Trains, config: Any, options: Any) -> int: ...


@lru_cache(maxsize=64)
def trace(spec: FamilySpec, source: Source, options: PlanOptions, objective: Traced) -> Trace:
    """Run one pass in shapes. Raises UsageError for options that do not suit the network.

    What decides on the sharding only (`unsharded`) is best left at its defaults: it changes nothing here.
    """
    trains, plans = spec.load_trains(), spec.load_plans()
    config = spec.load_checkpoints().config(source, options)
    network, trained = build(trains, plans, config, options, "meta")
    probe = plans.probe(config, options, "meta")
    segments = run_pass(network, probe, objective.loss(trains))
    cache = objective.cache(trains, config, options)
    rules = trains.parts(network, options)
    parts: dict[str, int] = {}
    for name, parameter in network.named_parameters():
        part = part_of(rules, name)
        parts[part] = parts.get(part, 0) + parameter.numel()
    return Trace(
        parts=parts,
        groups=tuple(tuple(tensor.numel() for tensor in group.parameters) for group in trained),
        largest=max(parameter.numel() for parameter in network.parameters()),
        sizes=tuple(parameter.numel() for parameter in network.parameters()),
        tokens=probe.tokens,
        supervised=probe.supervised,
        vocab_size=probe.width,
        segments=tuple(segments),
        hidden=tuple(
            tensor.numel()
            for group in trained
            for tensor, hidden in zip(group.parameters, group.hidden, strict=True)
            if hidden
        ),
        cache=cache,
        sample=_tensor_bytes(probe.batch) // options.batch,
        whole=max((_elements(module) for module in trains.uneven(network)), default=0),
    )


def _elements(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _tensor_bytes(value: Any) -> int:
    """Of all tensors in a batch, those that stand in it several times as often as they do."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_tensor_bytes, value.values()))
    return sum(map(_tensor_bytes, value)) if isinstance(value, list | tuple) else 0


def unsharded(options: PlanOptions) -> PlanOptions:
    """The options with all that a pass on one GPU does not depend on at its default."""
    offloads = ("offload_optimizer", "offload_parameters")
    names = ("as_published", "spread", "deepspeed", "gpus", "accumulation", "optimizer", "zero", *offloads)
    defaults: dict[str, Any] = {each.name: each.default for each in fields(options) if each.name in names}
    return replace(options, **defaults)


def build(trains: Trains, plans: Plans, config: Any, options: PlanOptions, device: str) -> tuple[Any, list[Group]]:
    """The network as the trainer trains it, random where on the CPU, and its parameter groups."""
    with default_dtype(DTYPES[options.dtype]), torch.device(device):
        network = plans.build(config, options)
        freeze(network, trains, options)
    if options.gradient_checkpointing:
        trains.enable_checkpointing(network)
    return network.train(), groups(network, trains, options)


def run_pass(network: Any, probe: Probe, loss_of: Loss) -> list[Segment]:
    """Forward and backward pass of a loss.

    Every gradient is dropped as soon as it is finished.
    """
    segments: list[Segment] = []
    memory = LiveMemory(probe.width)

    def end(phase: Phase, gradient: int = 0, held: int = 0) -> None:
        events, memory.events = memory.events, _no_events()
        segments.append(Segment(phase, memory.peak, memory.wide_at_peak, gradient, held, events))

    def finished(parameter: Tensor) -> None:
        end("backward", parameter.numel())
        parameter.grad = None
        memory.restart_peak()

    handles = [
        parameter.register_post_accumulate_grad_hook(finished)
        for parameter in network.parameters()
        if parameter.requires_grad
    ]
    with fused_kernels(), memory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about random states and devices that shapes do not have
        loss = loss_of(network, probe.batch)
        end("forward", held=memory.live - memory.wide_live)
        memory.restart_peak()
        loss.backward()  # type: ignore[no-untyped-call]
        end("backward")
    for handle in handles:
        handle.remove()
    return segments


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make tensors of this type within the block, unless told otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
