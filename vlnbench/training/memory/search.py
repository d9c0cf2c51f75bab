"""Which changes would make a setting fit, cheapest first: searched by planning every candidate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from vlnbench.errors import UsageError
from vlnbench.training.family.changes import Change, Fields, cheapest_first
from vlnbench.training.family.find import Chosen
from vlnbench.training.memory.plan import Plan, check, gb, parse_gpus, plan, sharding, step_memory
from vlnbench.training.memory.trace import Trace
from vlnbench.training.memory.zero import usages
from vlnbench.training.options import PlanOptions

MAX_PLANS = 12
EVEN = 1_000_000
Largest = Literal["batch", "group", "frames"]
COUNTS = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64)
"""GPUs that are tried, where more of the same are an answer."""
MOST = 1024
"""As far as the largest value is looked for."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Changes that together make a setting fit, and what it then needs."""

    changes: tuple[Change, ...]
    plan: Plan

    @property
    def cost(self) -> int:
        return sum(change.cost for change in self.changes)

    @property
    def text(self) -> str:
        return ", ".join(change.text for change in self.changes)

    @property
    def price(self) -> str:
        return "; ".join(change.price for change in self.changes)


def suggest(wanted: Plan, chosen: Chosen) -> list[Suggestion]:
    """The six cheapest sets of at most three changes after which the setting fits, or is tight.

    None has all kinds of another that fits. What cannot fit for its optimizer step alone is not planned, nor are
    more than `MAX_PLANS` sets.
    """
    request = wanted.request
    possible = [*changes(request), *chosen.family.load_plans().changes(request)]
    found: list[Suggestion] = []
    left = MAX_PLANS
    for some in cheapest_first(possible):
        if len(found) == 6 or not left:
            break
        kinds = {change.kind for change in some}
        changed = apply(request, some)
        enough = [done for done in found if done.plan.fits == "yes"]
        if any({change.kind for change in done.changes} <= kinds for done in enough) or not _possible(changed):
            continue
        if smallest_bytes(changed, wanted.parts) > parse_gpus(changed.gpus).usable:
            continue
        left -= 1
        candidate = plan(changed, chosen)
        if candidate.fits != "no":
            found.append(Suggestion(some, candidate))
    return found


def largest(request: PlanOptions, name: Largest, chosen: Chosen) -> tuple[int, Plan]:
    """The largest value of an option with which the setting fits, and its plan; a group in one forward pass.

    What is needed grows nearly in proportion, so that few plans find it. Raises UsageError where even the least
    value does not fit, where there is no such option, and where memory does not depend on it.
    """
    request = chosen.family.load_checkpoints().settled(chosen.source, request)
    if not hasattr(request, name):
        raise UsageError(f"--largest {name}: what is planned has no --{name}")
    unit = max(1, getattr(request, "future_steps", None) or 1) if name == "frames" else 1

    def planned(count: int) -> Plan:
        value: dict[str, Any] = {name: count * unit}
        if name == "group":
            value |= {"batch": count, "accumulation": 1}
        return plan(replace(request, **value), chosen)

    fits = 2 if name == "group" else 1
    found, more = planned(fits), planned(fits + 1)
    if found.fits != "yes":
        raise UsageError(f"--largest {name}: {fits * unit} take {gb(found.high)} GB, {request.gpus} are too small")
    slope, fails = more.high - found.high, fits + MOST
    if slope <= 0:
        raise UsageError(f"--largest {name}: memory does not depend on it here")
    while fails - fits > 1:
        guess = min(fits + max(1, (found.gpus.usable - found.high) // slope), fails - 1)
        tried = planned(guess)
        if tried.fits == "yes":
            fits, found = guess, tried
        else:
            fails, slope = guess, max(slope, -(-(tried.high - found.high) // (guess - fits)))
    return fits * unit, found


def smallest_bytes(request: PlanOptions, parts: Mapping[str, int]) -> int:
    """The optimizer step's bytes per GPU as if adapters were nothing and parameters lay in even tensors.

    `parts` are the elements of the network's parts.
    """
    trained = sum(parts[part] for part in request.parts)
    tensors = (EVEN,) * max(1, trained // EVEN)
    step = Trace(parts, (tensors,), EVEN, tokens=0, supervised=0, vocab_size=0, segments=())
    return max(usage.total for usage in usages(step, sharding(request)))


def apply(request: PlanOptions, chosen: tuple[Change, ...]) -> PlanOptions:
    """The request with changes made."""
    new: dict[str, Any] = {name: value for change in chosen for name, value in change.fields}
    return replace(request, **new)


def _possible(request: PlanOptions) -> bool:
    """Whether the changes go together."""
    try:
        check(request)
    except UsageError:
        return False
    return True


def changes(request: PlanOptions) -> Iterator[Change]:
    """What could be done otherwise to need less, whatever the family is."""
    fields: Fields
    count = int(request.gpus.partition("x")[0])
    size = request.gpus.partition("x")[2]
    if not request.gradient_checkpointing:
        on = (("gradient_checkpointing", True),)
        yield Change("checkpointing", "--gradient-checkpointing", 3, on, "a quarter to a third slower")
    if request.batch > 1:
        fields = (
            ("batch", 1),
            ("accumulation", request.accumulation * request.batch),
        )
        text = f"--batch 1 --accumulation {request.accumulation * request.batch}"
        yield Change("batch", text, 1, fields, "same result, a little slower")
    if count > 1:
        costs = {1: 0, 2: 0, 3: 4}
        for stage in range(request.zero + 1, 4):
            price = "more communication" if stage == 3 else "none"
            yield Change("zero", f"--zero {stage}", costs[stage], (("zero", stage),), price)
    if not request.offload_optimizer:
        fields = (("offload_optimizer", True), ("zero", max(request.zero, 2)))
        text = "--offload-optimizer" + (" --zero 2" if request.zero < 2 else "")
        yield Change("offload", text, 6, fields, "optimizer step on the CPU: slow, and host memory")
        both = (*fields[:1], ("offload_parameters", True), ("zero", 3))
        text = "--offload-optimizer --offload-parameters --zero 3"
        yield Change("offload", text, 8, both, "weights cross the bus in every pass: very slow")
    yield from step_memory(request).changes(request)
    for more in COUNTS:
        if more > count:
            fields = (("gpus", f"{more}x{size}"), ("accumulation", max(1, request.accumulation * count // more)))
            yield Change("gpus", f"{more} GPUs", 10 + more, fields, "hardware; accumulation falls accordingly")
    if request.optimizer == "adamw" and not request.offload_optimizer:
        fields = (("optimizer", "adamw8bit"),)
        yield Change("optimizer", "--optimizer adamw8bit", 9, fields, "moments in 8 bits: slightly other updates")
