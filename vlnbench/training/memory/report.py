"""Plans as text: what needs the memory, whether it fits, what would."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from vlnbench.training.memory.plan import GIB, Plan, gb, sharding, step_memory
from vlnbench.training.memory.search import Suggestion

VERDICTS = {
    "yes": "fits",
    "tight": "tight: fits if freed blocks are given back in time, which makes it slower",
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
        *step_memory(planned.request).rows(usage),
        ("CUDA context" + (", NCCL" if gpus.count > 1 else ""), planned.context),
        ("cuBLAS, fragmentation", planned.fragmentation),
        ("peak", planned.peak),
    ]
    table = [[name, gb(size), f"{size / GIB:.1f}"] for name, size in rows]
    moments = ", ".join(f"{name} {gb(size)}" for name, size in planned.peaks.items())
    program = [f"the published program ({planned.program}), not vlnbench's trainer:"] if planned.program else []
    lines = [
        *program,
        _describe(planned),
        "",
        tabulate(
            table, headers=["per GPU", "GB", "GiB"], disable_numparse=True, colalign=("left", "right", "right")
        ),
        "",
        f"{format_peak(planned.peak, planned.high)}; in the {usage.moment}",
        f"      of that allocated by PyTorch, by moment: {moments} GB",
        f"GPU:  {gpus.label}: {gb(gpus.usable)} GB ({gpus.usable / GIB:.1f} GiB) usable: {verdict}",
        f"host: {gb(planned.host)} GB per process, {gb(planned.host_node)} GB per machine",
        *_notes(planned),
    ]
    if planned.fits != "yes" and not planned.program:
        lines += ["", _format_suggestions(suggestions)]
    return "\n".join(lines)


def format_beside(published: Plan, own: Plan) -> str:
    """Term by term, what the published program needs and what vlnbench's trainer does for the same step."""
    rows: list[tuple[str, str, str]] = []
    for name in ("weights", "states", "gradients", "activations", "logits", "buffers", "temporaries", "reference"):
        first, second = getattr(published.usage, name), getattr(own.usage, name)
        if first or second:
            rows.append((name, gb(first), gb(second)))
    for name in ("context", "fragmentation", "peak"):
        rows.append((name, gb(getattr(published, name)), gb(getattr(own, name))))
    rows.append(("in the", published.usage.moment, own.usage.moment))
    rows.append(("verdict", VERDICTS[published.fits], VERDICTS[own.fits]))
    headers = ["GB per GPU", "published", "vlnbench"]
    return str(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", "right", "right")))


def format_peak(peak: int, high: int) -> str:
    """What has to fit, and what one sees on a card with room."""
    seen = "" if gb(high) == gb(peak) else f" (nvidia-smi shows {gb(high)} on a large card)"
    return f"peak: {gb(peak)} GB have to fit{seen}"


def _describe(planned: Plan) -> str:
    request = planned.request
    adapters = f" and adapters of rank {request.lora_rank}" if request.lora_rank else ""
    total = sum(planned.parts.values())
    units = step_memory(request).describe(request, planned.gpus.count)
    return (
        f"{request.model}: {planned.trainable / 1e6:,.1f} M of {total / 1e6:,.1f} M parameters trained"
        f" ({','.join(request.tunable_parts)}{adapters})\n"
        f"{units + chr(10) if units else ''}"
        f"{planned.gpus.count} x {planned.gpus.label}, ZeRO {request.zero}, batch {request.batch}, accumulation"
        f" {request.accumulation}, {request.optimizer}, {request.dtype}, checkpointing"
        f" {'on' if request.gradient_checkpointing else 'off'}; {planned.tokens} positions per sample,"
        f" {planned.supervised} of them supervised"
    )


def _notes(planned: Plan) -> list[str]:
    usage, usable = planned.usage, planned.gpus.usable
    notes = [
        "note: on an H200 what PyTorch allocates was planned to 2 %, and what it holds to 2 GB, with samples of "
        "one length",
    ]
    if not planned.program:
        notes.append(
            "note: taking logits at every position in float32, instead, would need"
            f" {gb(planned.full_logits)} GB for the loss, as published programs do (--as-published)"
        )
    share = sharding(planned.request)
    shards = share.ranks if share.stage >= 2 else 1
    gradients = 0 if share.offload_optimizer else planned.trainable * share.weight_bytes // shards
    if usage.static + gradients > usable:
        notes.insert(
            0,
            f"why:  weights {gb(usage.weights)}, gradients {gb(gradients)}, optimizer states {gb(usage.states)}"
            f" GB alone are {gb(usage.static + gradients)} GB; no batch is small enough",
        )
    return notes


def _format_suggestions(suggestions: Sequence[Suggestion]) -> str:
    if not suggestions:
        return "No three changes make it fit."
    rows = [
        [each.text, gb(each.plan.peak), each.plan.fits, gb(each.plan.host_node), each.price]
        for each in suggestions
    ]
    headers = ["what would fit, in the order to try", "peak GB", "fits", "host GB", "price"]
    align = ("left", "right", "left", "right", "left")
    return str(tabulate(rows, headers=headers, disable_numparse=True, colalign=align))
