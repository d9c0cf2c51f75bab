"""What the command line knows of CMA and Seq2Seq as a model family. Loads nothing heavy."""

from __future__ import annotations

import json
from pathlib import Path

from agents.vlnce.options import MODEL_TYPE, PTH
from agents.vlnce.training.options import VLNCEPlanning, VLNCETraining
from vlnbench.training.family import FamilySpec


def recognizes(path: Path) -> bool:
    """Whether a path is a folder with such a config.json, or a released checkpoint by its name."""
    if path.suffix == PTH:
        return path.is_file()
    try:
        return bool(json.loads((path / "config.json").read_bytes()).get("model_type") == MODEL_TYPE)
    except (OSError, ValueError, AttributeError):
        return False


FAMILY = FamilySpec(
    name="vlnce",
    training=VLNCETraining,
    planning=VLNCEPlanning,
    implementation="agents.vlnce.training.family:VLNCEFamily",
    recognizes=recognizes,
    agent="vlnce",
    presets=("cma-tiny", "seq2seq-tiny"),
    sizes=("cma", "seq2seq"),
)
