"""What the command line knows of this family: its inputs, its options, its parts. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge

from agents.common.inputs import Inputs
from agents.common.prompts.navigation import checked, read_template
from vlnbench.errors import UsageError
from vlnbench.rollout.agent_options import CheckpointOptions
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.inference_options import InferenceOptions
from vlnbench.training.options import PlanOptions, StepOptions, TrainOptions
from vlnbench.util.bounds import Count, Natural, Positive
from vlnbench.util.durable.files import read_object

PARTS = ("vision", "projector", "language", "head")
VISION, PROJECTOR, LANGUAGE, HEAD = PARTS


@dataclass(frozen=True, kw_only=True)
class SeenInputs(Inputs):
    """What a network sees and says; saved beside its weights as inputs.json.

    prompt: the text of a question with its fields in braces; empty for the one that comes with vlnbench.
    """

    history: int = 4
    actions_per_answer: int = 4
    side: int = 384
    turn_deg: float = 15.0
    prompt: str = ""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The same as options of every command. None: as the checkpoint was trained, else as above."""

    history: Natural | None = None
    """Earlier frames in a question, evenly spread over the episode so far; default as trained, else 4."""
    actions_per_answer: Count | None = None
    """Actions that the model is asked for at once, at most; default as trained, else 4."""
    side: Annotated[int, Ge(16)] | None = None
    """Pixels of the longer side of a frame in a question; default as trained, else 384."""
    turn_deg: Annotated[float, Ge(1)] | None = None
    """Degrees of a turn, which the question names; default as trained, else 15."""
    prompt: Path | None = None
    """File with the question, fields in braces; default as trained, else the one that comes with vlnbench."""


def inputs_of(folder: Path, given: Seen) -> SeenInputs:
    """What a checkpoint's network sees and says, and what is given over it."""
    prompt = given.prompt and read_template(given.prompt)
    found = (SeenInputs.read(folder) or SeenInputs()).over(given, prompt=prompt)
    return replace(found, prompt=checked(found.prompt, f"{folder}: prompt") or read_template(None))


@dataclass(frozen=True, kw_only=True)
class SeenAgentOptions(Seen, CheckpointOptions):
    """How a checkpoint is loaded and asked."""

    max_new_tokens: Count = 48
    """Tokens of an answer, at most."""


@dataclass(frozen=True, kw_only=True)
class SeenStep(Seen, StepOptions):
    """What the memory of a step depends on."""

    PARTS: ClassVar[tuple[str, ...]] = PARTS
    ADAPTED: ClassVar[str | None] = LANGUAGE

    tunable_parts: tuple[str, ...] = PARTS
    """Parts that are trained: vision, projector, language, head. One word may name several, with commas."""


@dataclass(frozen=True, kw_only=True)
class SeenTraining(SeenStep, TrainOptions):
    """Training on collected walks (annotations.json), a window for every answer."""

    RATES: ClassVar[Mapping[str, str]] = {VISION: "vision_lr"}

    vision_lr: Positive | None = None
    """Learning rate of the vision tower."""


@dataclass(frozen=True, kw_only=True)
class SeenPlanning(SeenStep, PlanOptions):
    """Memory of a training step on questions late in an episode; frames are of 640 x 480 pixels."""


@dataclass(frozen=True, kw_only=True)
class SeenInference(Seen, InferenceOptions):
    """Memory of a question late in an episode; frames are of 640 x 480 pixels."""


def recognizes(folder: Path) -> bool:
    """Whether config.json is of a network with a tower and a language model; other families may say so, too."""
    try:
        config = read_object(folder / "config.json")
    except UsageError:
        return False
    return "vision_config" in config and "text_config" in config


FAMILY = FamilySpec(
    name="vision-language",
    agent="vision_language_family.agent:SeenAgent",
    recognizes=recognizes,
    checkpoints="vision_language_family.family:SeenCheckpoints",
    trains="vision_language_family.family:SeenTrains",
    plans="vision_language_family.family:SeenPlans",
    training=SeenTraining,
    planning=SeenPlanning,
    inference=SeenInference,
)
