"""What people saw of published programs, beside what is planned for these: a table for documents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tabulate import tabulate

from agents.janusvln.options import JanusVLNPlanning
from agents.qwen_vl.options import QwenVLPlanning
from agents.streamvln.options import StreamVLNPlanning
from vlnbench.training.memory.plan import GB, Plan, gb, plan
from vlnbench.training.objectives import get_objective
from vlnbench.training.options import PlanOptions


@dataclass(frozen=True)
class Seen:
    """One observation. runs: whether it did. seen: GB of the least and of the most that a card took, if told."""

    what: str
    options: PlanOptions
    runs: bool
    seen: tuple[float, float] | None = None

    @cached_property
    def plan(self) -> Plan:
        return plan(self.options)

    @property
    def agrees(self) -> bool:
        """A setting that runs must not be refused, and one that ran out must not be promised."""
        return self.plan.fits != ("no" if self.runs else "yes")


def _streamvln(gpus: str, **fields: Any) -> PlanOptions:
    return StreamVLNPlanning(gpus=gpus, as_published=True, **fields)


def _janusvln(gpus: str, zero: int, **fields: Any) -> PlanOptions:
    parts = ("mm_mlp", "mm_llm", "geometry_merger")
    fields |= {"tunable_parts": parts, "batch": 1, "accumulation": 8, "as_published": True}
    return JanusVLNPlanning(gpus=gpus, zero=zero, **fields)


def _vlm_r1(gpus: str, batch: int, checkpointing: bool, model: str = "3b", zero: int = 3) -> PlanOptions:
    """Its referring expressions: an image and 400 tokens of text, of which 250 are the answer."""
    kind = get_objective("grpo").plan_options(QwenVLPlanning)
    fields: dict[str, Any] = {"history": 0, "text_tokens": 150, "answer_tokens": 250, "beta": 0.04}
    fields |= {"batch": batch, "accumulation": 1, "gradient_checkpointing": checkpointing, "zero": zero}
    return kind(model=f"qwen2.5-vl-{model}", objective="grpo", gpus=gpus, as_published=True, **fields)


FORK = {"text_tokens": 330}
"""Its answers describe what is seen, which is assumed to take 100 tokens more."""
TWO_PARTS = ("mm_vision_tower", "mm_mlp_adapter")
SEEN: tuple[Seen, ...] = (
    Seen("StreamVLN, all parts, 1 x 96 GB (#65)", _streamvln("1x96GB"), False),
    Seen("StreamVLN, vision + projector, 1 x 96 GB", _streamvln("1x96GB", tunable_parts=TWO_PARTS), True),
    Seen("StreamVLN, 2 x 80 GB (#25)", _streamvln("2x80GB"), False),
    Seen("StreamVLN, 4 x 80 GB (#25)", _streamvln("4x80GB"), False),
    Seen("StreamVLN, 32 x 80 GB (its scripts)", _streamvln("32x80GB"), True),
    Seen("JanusVLN, 8 x 80 GB, ZeRO 3 (a fork)", _janusvln("8x80GB", 3, **FORK), True, (46, 78)),
    Seen("JanusVLN, 8 x 80 GB, ZeRO 2 (a fork)", _janusvln("8x80GB", 2, **FORK), False),
    Seen("JanusVLN, 64 x 96 GB, ZeRO 3 (#3)", _janusvln("64x96GB", 3), True),
    Seen("JanusVLN, 8 x 180 GB, ZeRO 2 (#17)", _janusvln("8x180GB", 2), True),
    Seen("VLM-R1 3B, 6 x 96 GB, 16 answers (#81)", _vlm_r1("6x96GB", 16, False), False),
    Seen("VLM-R1 3B, 6 x 96 GB, 4 answers (#81)", _vlm_r1("6x96GB", 4, False), True),
    Seen("VLM-R1 3B, 8 x 80 GB, 7 answers (#30)", _vlm_r1("8x80GB", 7, False), True),
    Seen("VLM-R1 3B, 8 x 80 GB, 8 answers (#77)", _vlm_r1("8x80GB", 8, False), False),
    Seen("VLM-R1 3B, 8 x 40 GB, 5 answers, checkpointing (#30)", _vlm_r1("8x40GB", 5, True), True),
    Seen("VLM-R1 3B, 4 x 40 GB, 8 answers, checkpointing (#70)", _vlm_r1("4x40GB", 8, True), True),
    Seen("VLM-R1 3B, 4 x 24 GB, 4 answers, checkpointing (#151)", _vlm_r1("4x24GB", 4, True), False),
    Seen("VLM-R1 3B, 6 x 24 GB, 4 answers, checkpointing (#151)", _vlm_r1("6x24GB", 4, True), True),
    Seen("VLM-R1 3B, 2 x 48 GB, 2 answers (#155)", _vlm_r1("2x48GB", 2, False), False),
    Seen("VLM-R1 7B, 10 x 48 GB, 2 answers, ZeRO 2 (#74)", _vlm_r1("10x48GB", 2, True, "7b", 2), False),
    Seen("VLM-R1 7B, 8 x 80 GB, 8 answers, checkpointing (#7)", _vlm_r1("8x80GB", 8, True, "7b"), True),
)
"""Numbers are those of issues of the programs. Answers are those of one GPU in a forward pass; where a report does
not say them, or the ZeRO stage, or checkpointing, they are those of the scripts of the time."""

VERDICTS = {"yes": "fits", "tight": "may fit", "no": "does not fit"}


def observations_table() -> str:
    """Markdown table: seen, planned for the published program, planned for vlnbench's trainer."""
    rows = []
    for each in SEEN:
        planned, own = each.plan, plan(replace(each.options, as_published=False))
        seen, ratio = ("runs" if each.runs else "out of memory"), ""
        if each.seen is not None:
            low, high = each.seen
            seen = f"{low:g} to {high:g} GB"
            ratio = f"{planned.peak / GB / low:.2f}, {planned.high / GB / high:.2f}"
        sizes = f"{gb(planned.peak)} to {gb(planned.high)}"
        agrees = "yes" if each.agrees else "**no**"
        rows.append([each.what, seen, sizes, VERDICTS[planned.fits], ratio, agrees, gb(own.peak)])
    headers = ["program and cards", "seen", "planned", "verdict", "planned / seen", "agrees", "vlnbench"]
    align = ("left", "left", "right", "left", "right", "left", "right")
    return str(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True, colalign=align))
