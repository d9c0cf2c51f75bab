"""Does a GPU suffice to act? Memory of an agent at its largest, planned without a GPU and without the weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from tabulate import tabulate

from vlnbench.defaults import SIMULATOR
from vlnbench.errors import UsageError
from vlnbench.training.family.changes import Change, Fields, cheapest_first
from vlnbench.training.family.checkpoints import Source
from vlnbench.training.family.find import Chosen, find_family
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.inference_options import InferenceOptions
from vlnbench.training.memory.plan import (
    CONTEXT_BYTES,
    GIB,
    Gpus,
    Verdict,
    gb,
    parse_gpus,
    verdict,
)
from vlnbench.training.memory.replay import replay_passes
from vlnbench.training.memory.report import VERDICTS, format_peak
from vlnbench.training.memory.trace import default_dtype
from vlnbench.training.memory.tracker import LiveMemory, fused_kernels

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SIMULATOR_BYTES = 1_200_000_000
"""One habitat-sim beside JanusVLN on a 24 GB card, as a reproduction of it reports
(github.com/CHANGJianshuo/JanusVLN_reproduction, April 2026); not measured here."""


CACHE_BLOCK = 2**28
"""Caches are planned in blocks of this many bytes: they are made once, in their final size."""


@dataclass(frozen=True, slots=True)
class InferencePlan:
    """What acting needs. Bytes: weights and caches are exact, activations are those of the passes run in shapes.

    caches: what stays from step to step, at its longest, by name. passes: the activations of each pass.
    fragmentation, kept, peak, high: as a training's `Plan` has them.
    """

    request: InferenceOptions
    gpus: Gpus
    parameters: int
    weights: int
    caches: dict[str, int]
    passes: dict[str, int]
    simulators: int
    context: int
    fragmentation: int
    kept: int
    notes: tuple[str, ...]

    @property
    def activations(self) -> int:
        return max(self.passes.values(), default=0)

    @property
    def allocated(self) -> int:
        """What PyTorch would count at the peak."""
        return self.weights + sum(self.caches.values()) + self.activations

    @property
    def peak(self) -> int:
        return self.allocated + self.fragmentation + self.simulators + self.context

    @property
    def high(self) -> int:
        return self.peak + self.kept

    @property
    def fits(self) -> Verdict:
        return verdict(self.peak, self.high, self.gpus)

    @property
    def copies(self) -> int:
        """How many copies of the agent one GPU holds for sure, each in a process of its own (`eval --agents`)."""
        return self.gpus.usable // self.high

    def to_json(self) -> dict[str, Any]:
        """Everything, with the derived values, for a JSON file."""
        names = ("activations", "allocated", "peak", "high", "fits", "copies")
        return asdict(self) | {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes that together make it fit, and what it then needs."""

    changes: tuple[Change, ...]
    plan: InferencePlan


def plan_inference(options: InferenceOptions, chosen: Chosen | None = None) -> InferencePlan:
    """Plan one way of acting; takes seconds. Raises UsageError for what cannot be.

    chosen: what the options name, where that is known.
    """
    spec, source = chosen or find_family(options.family, options.model, "--model")
    if not isinstance(options, spec.check_inference()):
        raise UsageError(f"--model {options.model}: is of the family {spec.name}, the options are not")
    options.check()
    options = spec.load_checkpoints().settled(source, options)
    gpus = parse_gpus(options.gpus)
    found = _run(spec, source, replace(options, gpus="1x24GB", simulators=0, agent=""))
    allocated = found.weights + sum(found.caches.values()) + max(found.passes.values(), default=0)
    return InferencePlan(
        request=options,
        gpus=gpus,
        parameters=found.parameters,
        weights=found.weights,
        caches=dict(found.caches),
        passes=dict(found.passes),
        simulators=options.simulators * SIMULATOR_BYTES,
        context=CONTEXT_BYTES,
        fragmentation=found.needed - allocated,
        kept=found.reserved - found.needed,
        notes=found.notes,
    )


class _Found(NamedTuple):
    """What a network takes in shapes, whatever the GPU is."""

    parameters: int
    weights: int
    caches: dict[str, int]
    passes: dict[str, int]
    notes: tuple[str, ...]
    needed: int
    reserved: int


@lru_cache(maxsize=32)
def _run(spec: FamilySpec, source: Source, options: InferenceOptions) -> _Found:
    plans = spec.load_plans()
    config = spec.load_checkpoints().config(source, options)
    with default_dtype(DTYPES[options.dtype]), torch.device("meta"):
        network = plans.inference_network(config, options)
        count = sum(each.numel() for each in network.parameters())
        if options.quantize:
            network = plans.quantized(network, options.quantize)
    found = plans.inference(network.eval(), config, options)
    passes, events = {}, []
    with fused_kernels(), torch.no_grad():
        for name, run in found.passes.items():
            with LiveMemory() as memory:
                run()
            passes[name] = memory.peak
            events.append(memory.events)
    sizes = [each.numel() * each.element_size() for each in network.parameters()]
    caches = [size for each in found.caches.values() for size in _blocks(each)]
    held = replay_passes([*sizes, *caches], events)
    needed = max(held.needed, sum(sizes) + sum(caches) + max(passes.values(), default=0))
    reserved = max(held.reserved, needed)
    return _Found(count, sum(sizes), dict(found.caches), passes, tuple(found.notes), needed, reserved)


def _blocks(size: int) -> Iterator[int]:
    """A cache in blocks."""
    yield from itertools.repeat(CACHE_BLOCK, size // CACHE_BLOCK)
    yield size % CACHE_BLOCK


def remedies(planned: InferencePlan, chosen: Chosen) -> list[Remedy]:
    """The five cheapest sets of at most three changes after which it fits; none has all kinds of another.

    Every change is planned by itself, and sets that would suffice if what is saved were added up are planned.
    """
    request = planned.request
    possible = [*_changes(request), *chosen.family.load_plans().inference_changes(request)]
    saved = {change: planned.peak - plan_inference(_changed(request, change), chosen).peak for change in possible}
    found: list[Remedy] = []
    for some in cheapest_first(possible):
        kinds = {change.kind for change in some}
        if len(found) == 5:
            break
        if planned.peak - sum(saved[change] for change in some) > planned.gpus.usable:
            continue
        if any({change.kind for change in done.changes} <= kinds for done in found):
            continue
        candidate = plan_inference(_changed(request, *some), chosen)
        if candidate.fits == "yes":
            found.append(Remedy(some, candidate))
    return found


def _changed(request: InferenceOptions, *some: Change) -> InferenceOptions:
    fields: dict[str, Any] = dict(pair for change in some for pair in change.fields)
    return replace(request, **fields)


def _changes(request: InferenceOptions) -> Iterator[Change]:
    """What could be done otherwise, whatever the family is."""
    fields: Fields
    if request.dtype == "fp32":
        fields = (("dtype", "bf16"),)
        yield Change("dtype", "--dtype bfloat16", 3, fields, "as published; answers differ in close cases")
    price = "slower; in half precision, close answers may differ"
    if request.max_batch > 1:
        yield Change("batch", "--max-batch 1", 1, (("max_batch", 1),), price)
    if request.episodes > 1:
        fields = (("envs", 1), ("max_batch", 1))
        yield Change("batch", "--envs 1 --max-batch 1", 2, fields, f"one episode under way: {price}")
    if request.simulators:
        fields = (("simulators", 0),)
        yield Change(
            "simulator", "--simulators 0", 2, fields, f"{SIMULATOR} simulator, or habitat-sim on another GPU"
        )


def format_inference(planned: InferencePlan, found: Sequence[Remedy] = ()) -> str:
    """All of a plan, for people."""
    request, gpus = planned.request, planned.gpus
    highest = max(planned.passes, key=lambda name: planned.passes[name])
    rows = [
        ("weights", planned.weights),
        *planned.caches.items(),
        (f"activations ({highest})", planned.activations),
        (f"simulators ({request.simulators})", planned.simulators),
        ("CUDA context", planned.context),
        ("cuBLAS, fragmentation", planned.fragmentation),
        ("peak", planned.peak),
    ]
    table = [[name, gb(size), f"{size / GIB:.1f}"] for name, size in rows]
    lines = [
        f"{request.model}: {planned.parameters / 1e6:,.1f} M parameters acting in {request.dtype}"
        f"{f', blocks of the language model kept in {request.quantize}' if request.quantize else ''}, "
        f"{request.max_batch} {'episode' if request.max_batch == 1 else 'episodes'} at once, "
        f"{request.episodes} under way (eval --envs {request.episodes})",
        "",
        tabulate(
            table, headers=["one copy", "GB", "GiB"], disable_numparse=True, colalign=("left", "right", "right")
        ),
        "",
        format_peak(planned.peak, planned.high) + f"; {gb(planned.allocated)} GB allocated by PyTorch",
        f"GPU:  {gpus.label}: {gb(gpus.usable)} GB ({gpus.usable / GIB:.1f} GiB) usable: {VERDICTS[planned.fits]}",
        *_replicas(planned),
        *(f"note: {note}" for note in planned.notes),
        "note: weights and caches are exact; acting has not been compared with a GPU yet",
    ]
    if planned.fits != "yes":
        lines += ["", _format_remedies(found)]
    return "\n".join(lines)


def _replicas(planned: InferencePlan) -> list[str]:
    """What several copies would take; nothing where there is no place for more than one."""
    copies, count = planned.copies, planned.gpus.count
    if copies * count < 2:
        return []
    everything = gb(copies * count * planned.peak)
    episodes = f"{copies * count * planned.request.max_batch} episodes at once"
    where = f"{copies} on every GPU" if count > 1 else f"{copies}"
    return [f"copies of the agent (eval --agents): up to {where}, {everything} GB in all, {episodes}"]


def _format_remedies(found: Sequence[Remedy]) -> str:
    if not found:
        return "No three changes make it fit."
    rows = [
        [
            ", ".join(change.text for change in each.changes),
            gb(each.plan.peak),
            "; ".join(change.price for change in each.changes),
        ]
        for each in found
    ]
    headers = ["what would fit, cheapest first", "peak GB", "price"]
    return str(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", "right", "left")))
