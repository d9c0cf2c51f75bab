"""What DeepSpeed allocates around a network: gradients, optimizer states, buffers and the optimizer step's copies.

Read from the source of DeepSpeed 0.19.8 (`runtime/zero/stage_1_and_2.py`, `runtime/zero/stage3.py`, without ZeRO
`runtime/fp16/unfused_optimizer.py`) for what the trainer sets: bfloat16 parameters, no other type to accumulate
gradients in (so they are bfloat16, too), contiguous gradients, a torch optimizer handed over as an object. For
another version: docs/how-to/maintenance.md says which rule comes from which function, and how to derive it.

Left out: ZeRO 3 replaces torch's linear function by one that keeps its input for the backward pass even where the
weight is frozen, so with a frozen language model and without checkpointing activations are more than planned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vlnbench.training.memory.trace import Segment, Trace

Moment = Literal["forward", "loss", "backward", "gradient reduction", "optimizer step", "rollouts"]

BUCKET = 500_000_000
"""Elements of a reduce bucket, DeepSpeed's default (`reduce_bucket_size`)."""
LIVE_PARAMETERS = 1_000_000_000
"""Elements that ZeRO 3 keeps gathered at most, but for a tensor in use that is larger (`max_live_parameters`)."""
SUB_GROUP = 1_000_000_000
"""Elements that ZeRO 3 updates at a time (`sub_group_size`)."""
NORM_BYTES = 8
"""Gradient norms are taken in float64, one tensor at a time."""

MASTER_BYTES = 4
MOMENT_BYTES = {"adamw": 8.0, "adamw8bit": 2.0 + 2 * 4 / 256, "adafactor": 0.0, "muon": 8.0}
"""Per trainable element. 8-bit moments have a float32 scale per 256; Adafactor keeps two vectors per matrix."""
HIDDEN_BYTES = {"muon": 4.0}
"""Per element of matrices inside the network, where that is another figure."""
ADAFACTOR_BYTES, MUON_BYTES = 8, 20
"""Temporaries of updates that take one tensor at a time, Muon's of matrices. The others update in place."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How training is spread over `ranks` GPUs.

    `weight_bytes`: bytes of a parameter and of its gradient (2 or 4). `bucket`: elements of a reduce bucket;
    `overlap`: stage 2 has two, one to be filled while the other is reduced. `live`, `sub_group`: see
    LIVE_PARAMETERS and SUB_GROUP.
    """

    stage: int
    ranks: int
    accumulation: int
    optimizer: str
    offload_optimizer: bool = False
    offload_parameters: bool = False
    weight_bytes: int = 2
    bucket: int = BUCKET
    overlap: bool = False
    live: int = LIVE_PARAMETERS
    sub_group: int = SUB_GROUP

    @property
    def bucket_bytes(self) -> int:
        """Bytes of the buckets in stages 1 and 2."""
        return self.bucket * self.weight_bytes * (2 if self.overlap else 1)


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes on one GPU at one moment of a step, by what holds them.

    With rewards: reference, the frozen copy of the network; cache, keys and values while the network acts.
    """

    moment: Moment
    weights: int
    states: int
    gradients: int
    activations: int
    logits: int
    buffers: int
    temporaries: int
    reference: int = 0
    cache: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.static + self.changing

    @property
    def static(self) -> int:
        """What arithmetic gives exactly: weights, of the reference too, and optimizer states."""
        return self.weights + self.states + self.reference

    @property
    def changing(self) -> int:
        """What comes and goes within a step."""
        return self.gradients + self.activations + self.logits + self.buffers + self.temporaries + self.cache


def usages(trace: Trace, sharding: Sharding, logits: int = 0) -> Iterator[Usage]:
    """Every moment of an optimizer step that can be its peak.

    logits: bytes that a loss over every position takes beside the trace, whose own has the supervised ones only.
    """
    size, stage = sharding.weight_bytes, sharding.stage
    held = (weight_bytes(trace, sharding), state_bytes(trace, sharding))
    gathered = gathered_bytes(trace, sharding)
    for later in (False, True)[: sharding.accumulation]:
        flow = Gradients(trace, sharding, later)
        for segment in trace.segments:
            activations = segment.peak - segment.logits
            buffers = flow.buffers + gathered
            yield Usage(segment.phase, *held, flow.held, activations, segment.logits, buffers, 0)
            if logits and segment.phase == "forward":
                yield Usage("loss", *held, flow.held, segment.held, logits, buffers, 0)
            flow.finish(segment)
    if stage == 1:
        owned = 0 if sharding.offload_optimizer else sum(owned_elements(trace, sharding.ranks))
        buffers = sharding.bucket_bytes + permanent_buffers(trace, sharding)
        yield Usage("gradient reduction", *held, (trace.trainable + owned) * size, 0, 0, buffers, 0)
    elif stage == 0 and sharding.ranks > 1:
        buffers = min(trace.trainable, max(sharding.bucket, trace.largest)) * size
        yield Usage("gradient reduction", *held, trace.trainable * size, 0, 0, buffers, 0)
    buffers = permanent_buffers(trace, sharding)
    for gradients, temporaries in _step(trace, sharding):
        yield Usage("optimizer step", *held, gradients, 0, 0, buffers, temporaries)


def weight_bytes(trace: Trace, sharding: Sharding) -> int:
    """Weights that stay on one GPU. ZeRO 3 shards frozen ones, too."""
    if sharding.offload_parameters:
        return 0
    return -(-trace.parameters * sharding.weight_bytes // (sharding.ranks if sharding.stage == 3 else 1))


def gathered_bytes(trace: Trace, sharding: Sharding) -> int:
    """Weights that ZeRO 3 holds whole: those in use and the next ones. A single GPU's share is whole already."""
    if sharding.stage < 3 or (sharding.ranks == 1 and not sharding.offload_parameters):
        return 0
    return min(trace.parameters, max(sharding.live, trace.largest, trace.whole)) * sharding.weight_bytes


def state_bytes(trace: Trace, sharding: Sharding) -> int:
    """Master copy and moments on one GPU. Without ZeRO float32 weights are their own master copy."""
    if sharding.offload_optimizer:
        return 0
    moments = MOMENT_BYTES[sharding.optimizer]
    saved = (moments - HIDDEN_BYTES.get(sharding.optimizer, moments)) * sum(trace.hidden)
    return round(state_size(trace.trainable, sharding) - saved)


def state_size(elements: int, sharding: Sharding) -> float:
    """Bytes of master copy and moments, wherever they are, that one rank keeps."""
    master = 0 if sharding.stage == 0 and sharding.weight_bytes == MASTER_BYTES else MASTER_BYTES
    share = sharding.ranks if sharding.stage else 1
    return elements * (master + MOMENT_BYTES[sharding.optimizer]) / share


def owned_elements(trace: Trace, ranks: int) -> list[int]:
    """Elements, by group, of the tensors that reach into one rank's partition, of the rank with the most.

    Every group is flattened and cut evenly; a gradient at the cut is kept whole on both sides (ZeRO 1 and 2).
    """
    owned = [[0] * len(trace.groups) for _ in range(ranks)]
    for number, group in enumerate(trace.groups):
        share, start = -(-sum(group) // ranks), 0
        for size in group:
            for rank in range(start // share, (start + size - 1) // share + 1):
                owned[rank][number] += size
            start += size
    return max(owned, key=sum)


@dataclass(slots=True)
class Gradients:
    """Finished gradients while a backward pass goes on.

    Without ZeRO and in stage 1 they stay until the step, and later passes add to them. Stage 2 copies each into a
    bucket; when the bucket is full, it is reduced and this rank's tensors move to a buffer for all it owns, which
    each pass allocates anew while the sums of the passes before stay. A tensor larger than the bucket stays as it
    is until the next one comes. Stage 3 has the buffer for its share from the start and adds to it.
    """

    trace: Trace
    sharding: Sharding
    later: bool
    held: int = 0
    buffers: int = 0
    _filled: int = 0
    waiting: int = 0
    partition: int = 0

    def __post_init__(self) -> None:
        size, stage = self.sharding.weight_bytes, self.sharding.stage
        self.buffers = permanent_buffers(self.trace, self.sharding)
        if stage < 2:
            self.held = self.trace.trainable * size if self.later else 0
        elif stage == 3:
            self.partition = gradient_share(self.trace, self.sharding)
        elif self.later and not self.sharding.offload_optimizer:
            self.partition = sum(owned_elements(self.trace, self.sharding.ranks)) * size
        if stage >= 2:
            self.held = self.partition

    def finish(self, segment: Segment) -> None:
        """Take over the gradient at the segment's end."""
        size, stage = self.sharding.weight_bytes, self.sharding.stage
        if not segment.gradient:
            return
        if stage in (1, 2):
            self.buffers = permanent_buffers(self.trace, self.sharding) + self.sharding.bucket_bytes
        if stage < 2:
            self.held += 0 if self.later else segment.gradient * size
            return
        if self._filled + segment.gradient > self.sharding.bucket:
            self._flush()
        self._filled += segment.gradient
        if segment.gradient > self.sharding.bucket:
            copies = 2 if stage == 3 or self.sharding.offload_optimizer else 1  # reduced into another tensor
            self.waiting = copies * segment.gradient * size
        self.held = self.partition + self.waiting

    def _flush(self) -> None:
        self._filled = self.waiting = 0
        if self.sharding.stage == 2 and not self.sharding.offload_optimizer:
            owned = sum(owned_elements(self.trace, self.sharding.ranks)) * self.sharding.weight_bytes
            self.partition = 2 * owned if self.later else owned


def gradient_share(trace: Trace, sharding: Sharding) -> int:
    """Bytes of this rank's share of all gradients on the GPU."""
    if sharding.offload_optimizer:
        return 0
    return -(-trace.trainable // sharding.ranks) * sharding.weight_bytes


def permanent_buffers(trace: Trace, sharding: Sharding) -> int:
    """Stage 3 keeps its bucket; offloading stages 1 and 2 keep room for the largest gradient."""
    if sharding.stage == 3:
        return sharding.bucket * sharding.weight_bytes
    if sharding.offload_optimizer:
        return max(map(max, trace.groups)) * sharding.weight_bytes
    return 0


def _step(trace: Trace, sharding: Sharding) -> Iterator[tuple[int, int]]:
    """Bytes of gradients and of temporaries at every stage of the optimizer step.

    Groups are updated one after the other (ZeRO 3: in sub-groups). A group's gradients are flattened and that is
    converted to float32 before the originals go; then comes the update with temporaries of its own.
    """
    size, stage = sharding.weight_bytes, sharding.stage
    tensor = max(map(max, trace.groups))
    wide = 0 if size == MASTER_BYTES else MASTER_BYTES
    if sharding.offload_optimizer:
        yield 0, tensor * NORM_BYTES
    elif stage == 0:
        own = {"adafactor": ADAFACTOR_BYTES * tensor, "muon": muon_temporaries(trace, sharding.ranks)}
        yield trace.trainable * size, trace.trainable * wide + own.get(sharding.optimizer, 0)
    elif stage == 3:
        shard = min(
            -(-max(map(sum, trace.groups)) // sharding.ranks), sharding.sub_group + -(-tensor // sharding.ranks)
        )
        kept = gradient_share(trace, sharding)
        yield kept, shard * (size + wide)
        yield kept, shard * MASTER_BYTES
    else:
        owned = owned_elements(trace, sharding.ranks)
        yield sum(owned) * size, min(tensor, sum(owned)) * NORM_BYTES
        for number, group in enumerate(trace.groups):
            shard = -(-sum(group) // sharding.ranks)
            last = (
                number == len(trace.groups) - 1
            )  # all groups' gradients are in one buffer, which goes with the last
            yield sum(owned) * size, shard * (size + wide)
            yield 0 if last else sum(owned) * size, shard * MASTER_BYTES


def muon_temporaries(trace: Trace, ranks: int) -> int:
    """Bytes of updates: one matrix at a time, or where ranks share the work all of them, and what they gather."""
    largest = max(trace.hidden, default=0)
    if ranks == 1:
        return MUON_BYTES * largest
    everything = sum(trace.hidden)
    share = max(-(-everything // ranks), largest)
    return MASTER_BYTES * (everything + (ranks + 1) * share)
