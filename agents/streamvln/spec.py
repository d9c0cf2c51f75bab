"""What the command line knows of StreamVLN as a model family. Loads nothing heavy."""

from __future__ import annotations

from pathlib import Path

from agents.common.checkpoints.model_type import model_type
from agents.streamvln.training.options import (
    StreamVLNInference,
    StreamVLNPlanning,
    StreamVLNTraining,
)
from vlnbench.data.sets import CONVERSATIONS, TRAJECTORIES
from vlnbench.training.family.spec import FamilySpec

MODEL_TYPE = "llava_qwen"
"""What config.json of a published checkpoint calls itself."""


def recognizes(folder: Path) -> bool:
    """Whether a folder's config.json is that of a StreamVLN."""
    return model_type(folder) == MODEL_TYPE


FAMILY = FamilySpec(
    name="streamvln",
    training=StreamVLNTraining,
    planning=StreamVLNPlanning,
    inference=StreamVLNInference,
    checkpoints="agents.streamvln.training.family:StreamVLNCheckpoints",
    trains="agents.streamvln.training.family:StreamVLNTrains",
    plans="agents.streamvln.training.family:StreamVLNPlans",
    recognizes=recognizes,
    agent="streamvln",
    presets=("streamvln-tiny",),
    sizes=("streamvln-8b",),
    set_files=(TRAJECTORIES, CONVERSATIONS),
)
