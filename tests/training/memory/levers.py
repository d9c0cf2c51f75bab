"""What options and parts do to the memory of the published StreamVLN, as tables for documents."""

from __future__ import annotations

from tabulate import tabulate

from agents.streamvln.options import StreamVLNPlanning
from vlnbench.training.memory.plan import GB, Plan, gb, plan
from vlnbench.training.options import PlanOptions

LEVERS: tuple[tuple[str, dict[str, object]], ...] = (
    ("base", {}),
    ("projector + language model", {"tunable_parts": ("mm_mlp_adapter", "mm_language_model")}),
    ("vision tower + projector", {"tunable_parts": ("mm_vision_tower", "mm_mlp_adapter")}),
    ("projector", {"tunable_parts": ("mm_mlp_adapter",)}),
    ("projector, adapters of rank 64", {"tunable_parts": ("mm_mlp_adapter",), "lora_rank": 64}),
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


PARTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("vision + projector + language", {}),
    ("projector + language", {"tunable_parts": (1, 2)}),
    ("vision + language", {"tunable_parts": (0, 2)}),
    ("vision + projector", {"tunable_parts": (0, 1)}),
    ("language", {"tunable_parts": (2,)}),
    ("projector", {"tunable_parts": (1,)}),
    ("vision", {"tunable_parts": (0,)}),
    ("projector + LoRA of rank 16", {"tunable_parts": (1,), "lora_rank": 16}),
)
"""Choices of parts, by their places in a family's list."""
CARDS = ("24GB", "32GB", "40GB", "48GB", "80GB", "96GB")
"""Sizes of cards that a setting may fit on."""


def parts_table(kind: type[PlanOptions] = StreamVLNPlanning) -> str:
    """Markdown table: what tuning each choice of parts of the 8 B network takes, on eight cards and on one."""
    rows = []
    for name, places in PARTS:
        fields: dict[str, object] = dict(places)
        if "tunable_parts" in places:
            fields["tunable_parts"] = tuple(kind.PARTS[place] for place in places["tunable_parts"])  # type: ignore[attr-defined]
        many = plan(kind(gpus="8x80GB", **fields))  # type: ignore[arg-type]  # as below
        cells = [name, f"{many.trainable / 1e6:,.0f}", gb(many.peak), gb(many.host_node)]
        for offload in (False, True):
            one, fits = _smallest(kind, {**fields, "offload_optimizer": offload})
            cells += [gb(one.peak), gb(one.host_node), fits]
        rows.append(cells)
    offloaded = ("offloaded: peak", "host", "fits on")
    headers = ["parts", "trained (M)", "8 cards: peak", "host", "one card: peak", "host", "fits on", *offloaded]
    align = ("left", *["right"] * 9)
    return str(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True, colalign=align))


def _smallest(kind: type[PlanOptions], fields: dict[str, object]) -> tuple[Plan, str]:
    """The plan for one card and the smallest card that it fits on."""
    for card in CARDS:
        planned = plan(kind(gpus=f"1x{card}", **fields))  # type: ignore[arg-type]  # as below
        if planned.fits == "yes":
            return planned, card
    return planned, "none"


def levers_table(gpus: str = "8x80GB") -> str:
    """Markdown table: what each option does to the peak of the 8 B network with every part trained."""
    rows: list[list[str]] = []
    base: Plan | None = None
    for name, fields in LEVERS:
        planned = plan(StreamVLNPlanning(gpus=gpus, **fields))  # type: ignore[arg-type]  # each field has its own type
        base = base or planned
        usage = planned.usage
        change = "" if planned is base else f"{(planned.peak - base.peak) / GB:+.1f}"
        cells = (planned.peak, usage.weights, usage.states, usage.gradients, usage.changing - usage.gradients)
        rows.append([name, *map(gb, cells), usage.moment, change, gb(planned.host_node), planned.fits])
    headers = ["setting", "peak", "weights", "states", "gradients", "other", "peak in", "change", "host", "fits"]
    align = ("left", *["right"] * 5)
    return str(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True, colalign=align))
