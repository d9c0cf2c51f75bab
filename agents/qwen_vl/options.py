"""What the command line knows of Qwen2.5-VL: its inputs, its options, its family. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from agents.common.checkpoints.model_type import is_network
from agents.common.inputs import Inputs
from agents.common.options import GraphsOptions, LanguageModelPlanning, TokenizerOptions
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.inference_options import InferenceOptions
from vlnbench.training.options import StepOptions, TrainOptions
from vlnbench.util.bounds import Count, Natural, Positive

ARCHITECTURE = "Qwen2_5_VLForConditionalGeneration"
"""What config.json of a plain checkpoint says; JanusVLN's says more."""

PARTS = ("vision", "merger", "language_model")
"""Tunable parts."""
VISION, MERGER, LANGUAGE_MODEL = PARTS

LEAST_PIXELS = 4 * 28 * 28
MOST_CONSTRAINED = 6

Answers = Literal["plain", "tagged"]


@dataclass(frozen=True, kw_only=True)
class QwenVLInputs(Inputs):
    """What a Qwen2.5-VL sees and says; `QwenVLShown` has the same fields as options.

    prompt: the text of a question with its fields in braces; empty for the one that comes with vlnbench.
    """

    history: int = 4
    max_pixels: int = 401_408  # 512 embeddings; frames of 640 x 480 pixels become 23 x 17 = 391
    actions_per_answer: int = 4
    answers: Answers = "plain"
    turn_deg: float = 15.0
    prompt: str = ""


@dataclass(frozen=True, kw_only=True)
class QwenVLShown:
    """Options that decide what the network sees.

    None: as the checkpoint was trained, and for one that does not say so the defaults of `QwenVLInputs`.
    """

    history: Natural | None = None
    """Earlier frames shown beside the current one, spread evenly over the episode so far; default as
    the checkpoint was trained, 4 where it does not say."""
    max_pixels: Annotated[int, Ge(LEAST_PIXELS)] | None = None
    """Pixels of a frame at most; every 28 x 28 of them take one position; default as trained, else 401408."""
    actions_per_answer: Count | None = None
    """Actions in one answer at most; they are done before the model is asked again; default as trained, else 4."""


@dataclass(frozen=True, kw_only=True)
class QwenVLAsked(QwenVLShown):
    """The same, and how a question is put."""

    prompt: Path | None = None
    """File with the prompt; default as trained, else agents/common/prompts/navigation.txt."""
    answers: Answers | None = None
    """Names of actions alone (plain), or within <answer> tags (tagged, VLM-R1), before which there may be <think>
    tags; default as trained, else plain."""
    turn_deg: Annotated[float, Ge(1)] | None = None
    """Degrees of a turn that the prompt speaks of; a benchmark with another is refused; default as trained, else
    15."""


@dataclass(frozen=True, kw_only=True)
class QwenVLOptions(QwenVLAsked, TokenizerOptions, GraphsOptions):
    """How a plain Qwen2.5-VL checkpoint is loaded and asked; the question is that of the agent `openai`."""

    attn: Literal["auto", "eager", "sdpa"] = "auto"
    """Attention of the language model; auto is sdpa."""
    max_new_tokens: Count = 64
    """Tokens of one answer at most; thinking takes hundreds."""
    constrained: bool = False
    """Let nothing be answered but what can be read, without thinking; for up to 6 actions per answer."""


@dataclass(frozen=True, kw_only=True)
class QwenVLStep(QwenVLShown, StepOptions):
    """Options of this family that the memory of a step depends on."""

    PARTS: ClassVar[tuple[str, ...]] = PARTS
    ADAPTED: ClassVar[str | None] = LANGUAGE_MODEL

    tunable_parts: tuple[str, ...] = PARTS


@dataclass(frozen=True, kw_only=True)
class QwenVLTraining(QwenVLAsked, QwenVLStep, TokenizerOptions, TrainOptions):
    """Training of a Qwen2.5-VL on collected walks (annotations.json), a window for every answer."""

    INPUTS: ClassVar[tuple[str, ...]] = ("history", "max_pixels", "actions_per_answer", "answers", "turn_deg")
    RATES: ClassVar[Mapping[str, str]] = {VISION: "vision_lr", MERGER: "merger_lr"}

    vision_lr: Positive | None = None
    """Learning rate of the vision tower."""
    merger_lr: Positive | None = None
    """Learning rate of the merger."""
    attn: Literal["auto", "eager", "sdpa"] = "auto"
    """Attention of the language model."""


@dataclass(frozen=True, kw_only=True)
class QwenVLPlanning(QwenVLStep, LanguageModelPlanning):
    """Memory planning of a Qwen2.5-VL; frames are of 640 x 480 pixels."""

    model: str = "qwen2.5-vl-3b"
    text_tokens: Count = 260
    """Tokens of a question that are not images."""
    answer_tokens: Count = 24
    """Tokens of an answer."""
    attn: Literal["sdpa", "eager"] = "sdpa"
    """Attention of the language model."""


@dataclass(frozen=True, kw_only=True)
class QwenVLInference(QwenVLShown, InferenceOptions):
    """Planning what a Qwen2.5-VL needs while it acts; frames are of 640 x 480 pixels."""

    model: str = "qwen2.5-vl-7b"
    text_tokens: Count = 260
    """Tokens of a question that are not images; long RxR instructions make it about 430."""


FAMILY = FamilySpec(
    name="qwen_vl",
    training=QwenVLTraining,
    planning=QwenVLPlanning,
    inference=QwenVLInference,
    checkpoints="agents.qwen_vl.family:QwenVLCheckpoints",
    trains="agents.qwen_vl.family:QwenVLTrains",
    plans="agents.qwen_vl.family:QwenVLPlans",
    recognizes=partial(is_network, architecture=ARCHITECTURE),
    agent="qwen_vl",
    presets=("qwen-vl-tiny",),
    launch_flags={
        "max_pixels": "max_pixels",
        "min_pixels": "-frames have one size",
        "reward_funcs": "-rewards are of walks; give --rewards",
        "freeze_vision_modules": "-give --tunable-parts language_model",
        "dataset_name": "-give --benchmark and --split",
        "data_file_paths": "-questions come from walks; give --benchmark and --split",
        "image_folders": "-questions come from walks; give --benchmark and --split",
        "max_anyres_num": "",
    },
    sizes=("qwen2.5-vl-3b", "qwen2.5-vl-7b"),
)
