"""What the command line knows of CMA and Seq2Seq as a model family. Loads nothing heavy."""

from __future__ import annotations

from pathlib import Path

from agents.common.checkpoints.model_type import model_type
from agents.vlnce.options import MODEL_TYPE, PTH
from agents.vlnce.training.options import VLNCEPlanning, VLNCETraining
from vlnbench.data.sets import CONVERSATIONS, TRAJECTORIES
from vlnbench.training.family.spec import FamilySpec


def recognizes(path: Path) -> bool:
    """Whether a path is a folder with such a config.json, or a released checkpoint by its name."""
    if path.suffix == PTH:
        return path.is_file()
    return model_type(path) == MODEL_TYPE


FAMILY = FamilySpec(
    name="vlnce",
    training=VLNCETraining,
    planning=VLNCEPlanning,
    checkpoints="agents.vlnce.training.family:VLNCECheckpoints",
    trains="agents.vlnce.training.family:VLNCETrains",
    plans="agents.vlnce.training.family:VLNCEPlans",
    recognizes=recognizes,
    agent="vlnce",
    presets=("cma-tiny", "seq2seq-tiny"),
    sizes=("cma", "seq2seq"),
    set_files=(TRAJECTORIES, CONVERSATIONS),
)
