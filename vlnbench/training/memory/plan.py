"""Does a GPU suffice? Memory of a training step, planned without a GPU and without the weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Literal

from vlnbench.errors import UsageError
from vlnbench.training.deepspeed_file import planned_zero
from vlnbench.training.family.checkpoints import Source
from vlnbench.training.family.find import Chosen, find_family
from vlnbench.training.family.plans import Published
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.memory.objective import StepMemory
from vlnbench.training.memory.replay import Beside, lengths, replay
from vlnbench.training.memory.trace import DTYPES, Trace, trace, unsharded
from vlnbench.training.memory.zero import MASTER_BYTES, Sharding, Usage, state_size, usages
from vlnbench.training.objectives import get_objective
from vlnbench.training.options import PlanOptions
from vlnbench.util.loading import import_string

Verdict = Literal["yes", "tight", "no"]

GB, GIB = 10**9, 2**30
SOLD_AS_USABLE = 0.985
"""Of a card sold as N GB a program sees about this share of N GiB (24 GB: 23.6 GiB, 80 GB: 79.2 GiB)."""

CONTEXT_BYTES = 1_390_000_000
"""CUDA context and loaded kernels of one process, which no allocator of PyTorch counts; measured on an H200."""
ALONE_BYTES = 450_000_000
"""Buffers of NCCL on a single GPU, of which ZeRO 3 makes use; measured on an H200."""
NCCL_BYTES = 1_000_000_000
"""The same where there is more than one GPU. Not measured."""

EVEN = (1.0, 1.0)
"""Batches of one length, as shares of the planned one."""
PROCESS_BYTES = 4 * GB
"""Host memory of one training process with its libraries, before any weight is read."""
GPUS_PER_NODE = 8

_GPUS = re.compile(r"(?P<count>[1-9]\d{0,4})x(?P<size>\d{1,4}(?:\.\d{1,3})?)(?P<unit>GB|GiB)")


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of one kind. `usable`: bytes that a program can allocate on one of them."""

    count: int
    label: str
    usable: int


def sharding(options: PlanOptions) -> Sharding:
    """How a setting spreads over its GPUs, and what its DeepSpeed file says of that."""
    zero = planned_zero(options, DTYPES[options.dtype])
    own: dict[str, Any]
    if zero is not None:
        own = {
            "offload_optimizer": zero.offload_optimizer is not None and zero.offload_optimizer.device == "cpu",
            "offload_parameters": zero.offload_param is not None and zero.offload_param.device == "cpu",
            "bucket": zero.reduce_bucket_size,
            "overlap": zero.overlap_comm and options.zero == 2,
            "live": zero.max_live_parameters,
            "sub_group": zero.sub_group_size,
        }
    else:
        own = {name: getattr(options, name) for name in ("offload_optimizer", "offload_parameters")}
    return Sharding(
        stage=options.zero,
        ranks=parse_gpus(options.gpus).count,
        accumulation=options.accumulation,
        optimizer=options.optimizer,
        weight_bytes=DTYPES[options.dtype].itemsize,
        **own,
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """What a setting needs. Bytes throughout; `usage` is one GPU's at its peak, as PyTorch would count it.

    `low` adds what PyTorch does not count (`context`); `peak`, which has to fit, what its allocator wastes even
    where there is little (`fragmentation`); `high`, which nvidia-smi shows on a large card, the freed blocks that
    it keeps there (`kept`). `fits`: yes if `high` fits, tight if only `peak` does. `peaks`: the highest total of
    each moment of a step. `host`: memory of one process and, `host_node`, of all processes of a node with up to
    eight GPUs.
    `parts`: elements of the network's parts, trained or not. `program`: which one is planned, empty for
    vlnbench's trainer.
    """

    request: PlanOptions
    gpus: Gpus
    parts: Mapping[str, int]
    trainable: int
    tokens: int
    supervised: int
    usage: Usage
    peaks: Mapping[str, int]
    context: int
    fragmentation: int
    kept: int
    host: int
    host_node: int
    full_logits: int
    program: str = ""

    @property
    def low(self) -> int:
        return self.usage.total + self.context

    @property
    def peak(self) -> int:
        return self.low + self.fragmentation

    @property
    def high(self) -> int:
        return self.peak + self.kept

    @property
    def fits(self) -> Verdict:
        return verdict(self.peak, self.high, self.gpus)

    def to_json(self) -> dict[str, Any]:
        """Everything, with the derived values, for a JSON file."""
        derived = {name: getattr(self, name) for name in ("peak", "low", "high", "fits")}
        return asdict(self) | derived


def verdict(peak: int, high: int, gpus: Gpus) -> Verdict:
    """Whether what has to fit fits, and whether freed blocks that are kept do, too."""
    if high <= gpus.usable:
        return "yes"
    return "tight" if peak <= gpus.usable else "no"


def parse_gpus(text: str) -> Gpus:
    """GPUs from text such as 8x80GB or 1x23.6GiB. Raises UsageError for anything else."""
    found = _GPUS.fullmatch(text)
    if found is None or float(found["size"]) == 0:
        raise UsageError(f"--gpus {text}: expected COUNTxSIZE with GB or GiB, such as 1x96GB or 8x80GB")
    share = SOLD_AS_USABLE if found["unit"] == "GB" else 1.0
    return Gpus(int(found["count"]), found["size"] + found["unit"], int(float(found["size"]) * GIB * share))


def check(options: PlanOptions) -> Gpus:
    """Raise UsageError for the first option that cannot be; returns the GPUs."""
    if options.as_published and options.deepspeed:
        raise UsageError("--as-published: has a DeepSpeed file of its own; leave out --deepspeed")
    gpus = parse_gpus(options.gpus)
    options.check(gpus.count)
    planned_zero(options, DTYPES[options.dtype])
    return gpus


def step_memory(options: PlanOptions) -> StepMemory:
    """What the objective says of its steps. Raises UsageError where it says nothing."""
    objective = get_objective(options.objective)
    objective.plan_options(type(options))
    return _made(objective.memory)


@cache
def _made(name: str) -> StepMemory:
    made: StepMemory = import_string(name)()
    return made


def plan(options: PlanOptions, chosen: Chosen | None = None) -> Plan:
    """Plan one setting; takes seconds, and no time where only the sharding differs from a setting planned before.

    chosen: what the options name, where that is known.
    Raises UsageError for settings that cannot be, and for a family or an objective that cannot be planned.
    """
    spec, source = chosen or find_family(options.family, options.model, "--model")
    if not isinstance(options, spec.check_plannable()):
        raise UsageError(f"--model {options.model}: is of the family {spec.name}, the options are not")
    objective, memory = get_objective(options.objective), step_memory(options)
    objective.check_options(options)
    gpus = check(options)
    objective.check_trains(spec.load_trains())
    options = spec.load_checkpoints().settled(source, options)
    traced = trace(spec, source, unsharded(options), memory)
    shared, other = sharding(options), _published(spec, source, options)
    positions = options.batch * traced.tokens
    logits: tuple[int, ...] = ()
    if other is not None:
        shared = replace(shared, bucket=other.bucket)
        logits = tuple(positions * traced.vocab_size * each for each in other.logit_bytes)
    found = list(memory.moments(usages(traced, shared, sum(logits)), traced, shared, options))
    peaks: dict[str, int] = {}
    for usage in found:
        peaks[usage.moment] = max(peaks.get(usage.moment, 0), usage.total)
    usage = max(found, key=lambda each: each.total)
    beside = Beside(max(each.reference for each in found), max(each.cache for each in found), logits)
    spread = other.spread if other and options.spread == EVEN else options.spread
    if spread != EVEN:
        beside = beside._replace(lengths=lengths(*spread))
    held = replay(traced, shared, beside)
    needed = max(usage.total, held.needed, held.loading)
    host = host_bytes(traced, shared) + memory.host(traced, options)
    return Plan(
        request=options,
        gpus=gpus,
        parts=traced.parts,
        trainable=traced.trainable,
        tokens=traced.tokens,
        supervised=traced.supervised,
        usage=usage,
        peaks=peaks,
        context=_outside(shared, other),
        fragmentation=needed - usage.total,
        kept=max(0, held.reserved - needed),
        host=host,
        host_node=host * min(gpus.count, GPUS_PER_NODE),
        full_logits=full_logits_bytes(positions, traced.vocab_size, shared.weight_bytes),
        program=other.program if other else "",
    )


def window_flops(planned: Plan, chosen: Chosen) -> float:
    """Operations of training on one window of a plan; of answers that are drawn first, nothing."""
    config = chosen.family.load_checkpoints().config(chosen.source, planned.request)
    return chosen.family.load_plans().flops(config, planned.request, planned.parts, planned.tokens)


def _outside(shared: Sharding, other: Published | None) -> int:
    """Bytes of one process on a GPU that PyTorch's allocator does not hand out, and buffers of communication."""
    if shared.ranks == 1:
        return CONTEXT_BYTES + (ALONE_BYTES if shared.stage == 3 else 0)
    return CONTEXT_BYTES + NCCL_BYTES + (other.communication if other else 0)


def _published(spec: FamilySpec, source: Source, options: PlanOptions) -> Published | None:
    """What the published program does otherwise, where that is planned. Raises UsageError where nobody knows."""
    if not options.as_published:
        return None
    plans = spec.load_plans()
    found = plans.published(spec.load_checkpoints().config(source, options), options)
    if found is None:
        raise UsageError(f"--as-published: not known of the family {spec.name}; leave it out")
    return found


def host_bytes(traced: Trace, sharding: Sharding) -> int:
    """Host memory of one process: what is offloaded to it; of ZeRO 3 at least the weights, while they are read.

    Offloaded optimizer states come with a float32 gradient and a copy of the weights in their own type and, with
    accumulation, of the gradients summed so far (ZeRO 3: of the gradients always).
    """
    size, ranks = sharding.weight_bytes, sharding.ranks
    read, offloaded = traced.parameters * size if sharding.stage == 3 else 0, 0.0
    if sharding.offload_optimizer:
        summed = size if sharding.accumulation > 1 and sharding.stage < 3 else 0
        offloaded += (
            state_size(traced.trainable, sharding) + traced.trainable * (MASTER_BYTES + size + summed) / ranks
        )
    if sharding.offload_parameters:
        offloaded += traced.parameters * size / ranks
    return PROCESS_BYTES + round(max(read, offloaded))


def full_logits_bytes(positions: int, vocabulary: int, size: int) -> int:
    """Logits of all positions as the original code takes their loss, at its worst.

    Logits, their float32 copy, its shifted copy, the logarithms of the probabilities and their gradient.
    """
    return positions * vocabulary * (size + 4 * 4)


def gb(size: float) -> str:
    """Bytes as GB with one decimal."""
    return f"{size / GB:,.1f}"
