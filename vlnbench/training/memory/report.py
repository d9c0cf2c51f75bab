"""Plans as text: what needs the memory, whether it fits, what would."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from vlnbench.training.memory.plan import GB, GIB, MARGIN, Plan, PlanRequest, plan
from vlnbench.training.memory.search import Suggestion

VERDICTS = {
    "yes": "fits",
    "tight": "may fit: it is within the margin of the plan",
    "no": "does not fit",
}


def format_plan(planned: Plan, suggestions: Sequence[Suggestion] = ()) -> str:
    """All of a plan, for people."""
    usage, gpus = planned.usage, planned.gpus
    verdict = VERDICTS[planned.fits]
    rows: list[tuple[str, int]] = [
        ("weights", usage.weights),
        ("optimizer states", usage.states),
        ("gradients", usage.gradients),
        ("activations", usage.activations),
        ("logits", usage.logits),
        ("ZeRO buffers", usage.buffers),
        ("temporaries of the optimizer step", usage.temporaries),
        ("CUDA context" + (", NCCL" if gpus.count > 1 else ""), planned.context),
        ("fragmentation", planned.fragmentation),
        ("peak", planned.peak),
    ]
    table = [[name, _gb(size), f"{size / GIB:.1f}"] for name, size in rows]
    moments = ", ".join(f"{name} {_gb(size)}" for name, size in planned.peaks.items())
    lines = [
        _describe(planned),
        "",
        tabulate(
            table, headers=["per GPU", "GB", "GiB"], disable_numparse=True, colalign=("left", "right", "right")
        ),
        "",
        f"peak: {_gb(planned.peak)} GB ({_gb(planned.low)} to {_gb(planned.high)}), in the {usage.moment}",
        f"      of that allocated by PyTorch, by moment: {moments} GB",
        f"GPU:  {gpus.label}: {_gb(gpus.usable)} GB ({gpus.usable / GIB:.1f} GiB) usable: {verdict}",
        f"host: {_gb(planned.host)} GB per process, {_gb(planned.host_node)} GB per machine",
        *_notes(planned),
    ]
    if planned.fits != "yes":
        lines += ["", _format_suggestions(suggestions)]
    return "\n".join(lines)


def _describe(planned: Plan) -> str:
    request = planned.request
    adapters = f" and adapters of rank {request.lora_rank}" if request.lora_rank else ""
    total = sum(planned.parts.values())
    return (
        f"{request.model}: {planned.trainable / 1e6:,.1f} M of {total / 1e6:,.1f} M parameters trained"
        f" ({request.tunable_parts}{adapters})\n"
        f"{planned.gpus.count} x {planned.gpus.label}, ZeRO {request.zero}, batch {request.batch}, accumulation"
        f" {request.accumulation}, {request.optimizer}, {request.dtype}, checkpointing"
        f" {'on' if request.gradient_checkpointing else 'off'}; {planned.tokens} positions per sample,"
        f" {planned.supervised} of them supervised"
    )


def _notes(planned: Plan) -> list[str]:
    usage, usable = planned.usage, planned.gpus.usable
    notes = [
        f"note: weights and optimizer states are exact, the rest uncertain by {MARGIN:.0%}; no GPU was asked yet",
        "note: taking logits at every position in float32, as StreamVLN's own code does, would need"
        f" {_gb(planned.full_logits)} GB for the loss",
    ]
    share = planned.request.sharding
    shards = share.ranks if share.stage >= 2 else 1
    gradients = 0 if share.offload_optimizer else planned.trainable * share.weight_bytes // shards
    if usage.static + gradients > usable:
        notes.insert(
            0,
            f"why:  weights {_gb(usage.weights)}, gradients {_gb(gradients)}, optimizer states {_gb(usage.states)}"
            f" GB alone are {_gb(usage.static + gradients)} GB; no batch is small enough",
        )
    return notes


def _format_suggestions(suggestions: Sequence[Suggestion]) -> str:
    if not suggestions:
        return "No three changes make it fit."
    rows = [[each.text, _gb(each.plan.peak), _gb(each.plan.host_node), each.price] for each in suggestions]
    headers = ["what would fit, cheapest first", "peak GB", "host GB", "price"]
    return str(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", "right", "right", "left")))


LEVERS: tuple[tuple[str, dict[str, object]], ...] = (
    ("base", {}),
    ("projector + language model", {"tunable_parts": "mm_mlp_adapter,mm_language_model"}),
    ("vision tower + projector", {"tunable_parts": "mm_vision_tower,mm_mlp_adapter"}),
    ("projector", {"tunable_parts": "mm_mlp_adapter"}),
    ("projector, adapters of rank 64", {"tunable_parts": "mm_mlp_adapter", "lora_rank": 64}),
    ("batch 1, accumulation 4", {"batch": 1, "accumulation": 4}),
    ("batch 4, accumulation 1", {"batch": 4, "accumulation": 1}),
    ("checkpointing off", {"gradient_checkpointing": False}),
    ("ZeRO 0", {"zero": 0}),
    ("ZeRO 1", {"zero": 1}),
    ("ZeRO 3", {"zero": 3}),
    ("optimizer offloaded", {"offload_optimizer": True}),
    ("ZeRO 3, all offloaded", {"zero": 3, "offload_optimizer": True, "offload_parameters": True}),
    ("adamw8bit", {"optimizer": "adamw8bit"}),
    ("adafactor (ZeRO 0 only)", {"zero": 0, "optimizer": "adafactor"}),
    ("muon (ZeRO 0 only)", {"zero": 0, "optimizer": "muon"}),
    ("frames 16", {"frames": 16}),
    ("history 4", {"history": 4}),
    ("images of 224 pixels", {"image_size": 224}),
)


def levers_table(gpus: str = "8x80GB") -> str:
    """Markdown table: what each option does to the peak of the 8 B network with every part trained."""
    rows: list[list[str]] = []
    base: Plan | None = None
    for name, fields in LEVERS:
        planned = plan(PlanRequest(gpus=gpus, **fields))  # type: ignore[arg-type]  # each field has its own type
        base = base or planned
        usage = planned.usage
        change = "" if planned is base else f"{(planned.peak - base.peak) / GB:+.1f}"
        cells = (planned.peak, usage.weights, usage.states, usage.gradients, usage.changing - usage.gradients)
        rows.append([name, *map(_gb, cells), usage.moment, change, _gb(planned.host_node), planned.fits])
    headers = ["setting", "peak", "weights", "states", "gradients", "other", "peak in", "change", "host", "fits"]
    align = ("left", *["right"] * 5)
    return str(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True, colalign=align))


def _gb(size: float) -> str:
    return f"{size / GB:,.1f}"
