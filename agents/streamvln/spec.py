"""What the command line knows of StreamVLN as a model family. Loads nothing heavy."""

from __future__ import annotations

import json
from pathlib import Path

from agents.streamvln.training.options import CONVERSATIONS, TRAJECTORIES, StreamVLNPlanning, StreamVLNTraining
from vlnbench.training.family import FamilySpec

MODEL_TYPE = "llava_qwen"
"""What config.json of a published checkpoint calls itself."""


def recognizes(folder: Path) -> bool:
    """Whether a folder's config.json is that of a StreamVLN."""
    try:
        return bool(json.loads((folder / "config.json").read_bytes()).get("model_type") == MODEL_TYPE)
    except (OSError, ValueError, AttributeError):
        return False


FAMILY = FamilySpec(
    name="streamvln",
    training=StreamVLNTraining,
    planning=StreamVLNPlanning,
    implementation="agents.streamvln.training.family:StreamVLNFamily",
    recognizes=recognizes,
    agent="streamvln",
    presets=("streamvln-tiny",),
    sizes=("streamvln-8b",),
    set_files=(TRAJECTORIES, CONVERSATIONS),
)
