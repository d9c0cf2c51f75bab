"""The smallest card that a model is trained on, or acts on, for one to eight of them: tables for documents.

python -m tests.training.memory.cards
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tabulate import tabulate

from agents.janusvln.options import JanusVLNInference, JanusVLNPlanning
from agents.navila.options import NaVILAInference, NaVILAPlanning
from agents.qwen_vl.options import QwenVLInference, QwenVLPlanning
from agents.streamvln.options import StreamVLNInference, StreamVLNPlanning
from agents.uninavid.options import UniNaVidInference, UniNaVidPlanning
from vlnbench.training.inference_options import InferenceOptions
from vlnbench.training.memory.inference import InferencePlan, plan_inference
from vlnbench.training.memory.plan import Plan, gb, parse_gpus, plan, verdict
from vlnbench.training.objectives import get_objective
from vlnbench.training.options import PlanOptions

SIZES = (24, 32, 40, 48, 80, 96, 141)
COUNTS = (1, 2, 4, 8)
ACTING = (24, 32, 80, 141)

TWO = ("mm_vision_tower", "mm_mlp_adapter")
PUBLISHED = ("mm_mlp", "mm_llm", "geometry_merger")
LORA: dict[str, Any] = {"lora_rank": 64}


def _grpo(**fields: Any) -> PlanOptions:
    """Eight answers to a prompt of VLM-R1's size in an update of one GPU: an image and 400 tokens of text."""
    kind = get_objective("grpo").plan_options(QwenVLPlanning)
    sizes = {"history": 0, "text_tokens": 150, "answer_tokens": 250, "batch": 2, "accumulation": 4, "group": 8}
    return kind(objective="grpo", **(sizes | fields))


TRAINED: tuple[tuple[str, PlanOptions], ...] = (
    ("StreamVLN 8 B, all parts", StreamVLNPlanning(batch=1)),
    ("StreamVLN 8 B, all parts, optimizer offloaded", StreamVLNPlanning(batch=1, offload_optimizer=True)),
    ("StreamVLN 8 B, vision + projector", StreamVLNPlanning(batch=1, tunable_parts=TWO)),
    ("StreamVLN 8 B, projector + LoRA", StreamVLNPlanning(batch=1, tunable_parts=TWO[1:], **LORA)),
    ("JanusVLN 7 B, as published", JanusVLNPlanning(tunable_parts=PUBLISHED)),
    ("JanusVLN 7 B, mergers + LoRA", JanusVLNPlanning(tunable_parts=(PUBLISHED[0], PUBLISHED[2]), **LORA)),
    ("Qwen2.5-VL 3 B, GRPO", _grpo(model="qwen2.5-vl-3b")),
    ("Qwen2.5-VL 3 B, GRPO with LoRA", _grpo(model="qwen2.5-vl-3b", tunable_parts=(), **LORA)),
    ("Qwen2.5-VL 7 B, GRPO", _grpo(model="qwen2.5-vl-7b")),
    ("Qwen2.5-VL 7 B, GRPO with LoRA", _grpo(model="qwen2.5-vl-7b", tunable_parts=(), **LORA)),
)
"""Batches of one window, or of two answers; ZeRO 3 on several cards, but for adapters and offloading."""


def hardware_table() -> str:
    """Markdown table: the smallest card, and what has to fit on it, by the number of cards."""
    rows = []
    for name, options in TRAINED:
        cells = [name]
        for count in COUNTS:
            stage = 3 if count > 1 and not options.lora_rank and not options.offload_optimizer else 2
            planned = plan(replace(options, gpus=f"{count}x80GB", zero=stage))
            cells.append(f"{_smallest(planned)} ({gb(planned.peak)})")
        rows.append(cells)
    headers = ["", *(f"{count} card{'s' * (count > 1)}" for count in COUNTS)]
    return str(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))


PARTS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("projector", ("projector",), 0),
    ("projector + LoRA of rank 16", ("projector",), 16),
    ("vision + projector", ("vision", "projector"), 0),
    ("projector + language", ("projector", "language"), 0),
    ("vision + projector + language", ("vision", "projector", "language"), 0),
)
MODELS: tuple[tuple[str, PlanOptions, dict[str, tuple[str, ...]]], ...] = (
    *(
        (name, options, dict(zip(("vision", "projector", "language"), ((part,) for part in parts), strict=True)))
        for name, options, parts in (
            ("StreamVLN 8 B", StreamVLNPlanning(batch=1), StreamVLNPlanning.PARTS),
            ("NaVILA 8 B", NaVILAPlanning(batch=1), NaVILAPlanning.PARTS),
            ("Uni-NaVid 7 B", UniNaVidPlanning(batch=1), UniNaVidPlanning.PARTS),
        )
    ),
    (
        "JanusVLN 7 B",
        JanusVLNPlanning(batch=1),
        {"vision": ("mm_vision",), "projector": ("mm_mlp", "geometry_merger"), "language": ("mm_llm",)},
    ),
)
"""What a part is called in each model; JanusVLN has two projectors, and its second tower stays frozen."""


def parts_of_models_table() -> str:
    """Markdown table: what has to fit where one card trains the same parts of each model, and the smallest."""
    rows = []
    for label, parts, rank in PARTS:
        cells = [label]
        for _, options, names in MODELS:
            tuned = tuple(name for part in parts for name in names[part])
            planned = plan(replace(options, tunable_parts=tuned, lora_rank=rank, gpus="1x80GB"))
            cells.append(f"{gb(planned.peak)} ({_smallest(planned)})")
        rows.append(cells)
    headers = ["", *(name for name, _, _ in MODELS)]
    return str(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))


def _smallest(planned: Plan) -> str:
    """The smallest card that a plan fits on, or is tight on."""
    for size in SIZES:
        found = verdict(planned.peak, planned.high, parse_gpus(f"1x{size}GB"))
        if found != "no":
            return f"{size}{' tight' if found == 'tight' else ''}"
    return "none"


AGENTS: tuple[tuple[str, InferenceOptions], ...] = (
    ("StreamVLN 8 B", StreamVLNInference(model="streamvln-8b", simulators=0)),
    ("JanusVLN 7 B", JanusVLNInference(simulators=0)),
    ("JanusVLN 7 B, nf4", JanusVLNInference(simulators=0, quantize="nf4")),
    ("NaVILA 8 B", NaVILAInference(model="navila-8b", simulators=0)),
    ("Uni-NaVid 7 B", UniNaVidInference(model="uninavid-7b", simulators=0)),
    ("Qwen2.5-VL 7 B", QwenVLInference(model="qwen2.5-vl-7b", simulators=0)),
)


def acting_table() -> str:
    """Markdown table: what has to fit for one episode, and how many can be under way on a card."""
    rows = []
    for name, options in AGENTS:
        one = plan_inference(options)
        cells = [name, gb(one.peak)]
        for size in ACTING:
            cells.append(_episodes(options, one, size))
        rows.append(cells)
    headers = ["", "one episode", *(f"{size} GB" for size in ACTING)]
    return str(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))


def _episodes(options: InferenceOptions, one: InferencePlan, size: int) -> str:
    """`--envs` at most, acted on one at a time; any, where nothing is kept from step to step."""
    usable = parse_gpus(f"1x{size}GB").usable
    if one.high > usable:
        return "none"
    each = plan_inference(replace(options, envs=2)).high - one.high
    if each <= 0:
        return "any"
    count = 1 + (usable - one.high) // each
    while plan_inference(replace(options, envs=count)).high > usable:
        count -= 1
    return str(count)


if __name__ == "__main__":
    print(hardware_table(), parts_of_models_table(), acting_table(), sep="\n\n")
