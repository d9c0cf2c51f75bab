"""What the command line knows of JanusVLN as a model family. Loads nothing heavy."""

from __future__ import annotations

from pathlib import Path

from agents.common.checkpoints.model_type import is_network
from agents.janusvln.training.options import (
    SET_FILES,
    JanusVLNInference,
    JanusVLNPlanning,
    JanusVLNTraining,
)
from vlnbench.training.family.spec import FamilySpec

ARCHITECTURE = "Qwen2_5_VLForConditionalGenerationForJanusVLN"
"""What config.json of a published checkpoint calls the network; its model type is Qwen2.5-VL's."""


def recognizes(folder: Path) -> bool:
    """Whether a folder's config.json is that of a JanusVLN."""
    return is_network(folder, ARCHITECTURE)


FAMILY = FamilySpec(
    name="janusvln",
    training=JanusVLNTraining,
    planning=JanusVLNPlanning,
    inference=JanusVLNInference,
    checkpoints="agents.janusvln.training.family:JanusVLNCheckpoints",
    trains="agents.janusvln.training.family:JanusVLNTrains",
    plans="agents.janusvln.training.family:JanusVLNPlans",
    recognizes=recognizes,
    agent="janusvln",
    presets=("janusvln-tiny",),
    sizes=("janusvln-7b", "janusvln-3b"),
    set_files=SET_FILES,
)
