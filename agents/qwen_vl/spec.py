"""What the command line knows of Qwen2.5-VL as a model family. Loads nothing heavy."""

from __future__ import annotations

from pathlib import Path

from agents.common.checkpoints.model_type import is_network
from agents.qwen_vl.training.options import QwenVLInference, QwenVLPlanning, QwenVLTraining
from vlnbench.training.family import FamilySpec

ARCHITECTURE = "Qwen2_5_VLForConditionalGeneration"
"""What config.json of a plain checkpoint says; JanusVLN's says more."""


def recognizes(folder: Path) -> bool:
    """Whether a folder's config.json is that of a plain Qwen2.5-VL."""
    return is_network(folder, ARCHITECTURE)


FAMILY = FamilySpec(
    name="qwen_vl",
    training=QwenVLTraining,
    planning=QwenVLPlanning,
    inference=QwenVLInference,
    implementation="agents.qwen_vl.training.family:QwenVLFamily",
    recognizes=recognizes,
    agent="qwen_vl",
    presets=("qwen-vl-tiny",),
    sizes=("qwen2.5-vl-3b", "qwen2.5-vl-7b"),
)
