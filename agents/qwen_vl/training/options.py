"""Options of training Qwen2.5-VL and of planning its memory, and the names of its parts. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from vlnbench.errors import UsageError
from vlnbench.training.memory.inference_options import InferenceOptions
from vlnbench.training.options import PlanOptions, StepOptions, TrainOptions, at_least

PARTS = ("vision", "merger", "language_model")
"""Tunable parts."""
VISION, MERGER, LANGUAGE_MODEL = PARTS

MOST_PIXELS = 401_408
"""512 embeddings; frames of 640 x 480 pixels become 23 x 17 = 391."""


@dataclass(frozen=True, kw_only=True)
class QwenVLStep(StepOptions):
    """Options of this family that the memory of a step depends on."""

    PARTS: ClassVar[tuple[str, ...]] = PARTS
    ADAPTED: ClassVar[str | None] = LANGUAGE_MODEL

    tunable_parts: tuple[str, ...] = PARTS
    """Parts that are trained; everything else does not change by a single byte. One word may name several,
    separated by commas."""
    history: int = 4
    """Earlier frames shown beside the current one, spread evenly over the episode so far."""
    actions_per_answer: int = 4
    """Actions in one answer at most."""
    max_pixels: int = MOST_PIXELS
    """Pixels of a frame at most; every 28 x 28 of them take one position."""

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        at_least("history", self.history, 0)
        at_least("actions_per_answer", self.actions_per_answer, 1)
        at_least("max_pixels", self.max_pixels, 4 * 28 * 28)


@dataclass(frozen=True, kw_only=True)
class QwenVLTraining(QwenVLStep, TrainOptions):
    """Training of a Qwen2.5-VL on collected walks (annotations.json), a window for every answer."""

    RATES: ClassVar[Mapping[str, str]] = {VISION: "vision_lr", MERGER: "merger_lr"}

    vision_lr: float | None = None
    """Learning rate of the vision tower."""
    merger_lr: float | None = None
    """Learning rate of the merger."""
    tokenizer: Path | None = None
    """Folder with the tokenizer's files, where the checkpoint has none."""
    attn: Literal["auto", "eager", "sdpa"] = "auto"
    """Attention of the language model."""
    prompt: Path | None = None
    """File with the prompt; as of `--agent openai`."""
    answers: Literal["plain", "tagged"] = "plain"
    """Names of actions alone, or within <answer> tags (VLM-R1), before which there may be <think> tags."""
    turn_deg: float = 15.0
    """Degrees of a turn that the prompt speaks of."""

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        if self.turn_deg < 1:
            raise UsageError(f"--turn-deg {self.turn_deg:g}: expected at least 1")


@dataclass(frozen=True, kw_only=True)
class QwenVLPlanning(QwenVLStep, PlanOptions):
    """Memory planning of a Qwen2.5-VL; frames are of 640 x 480 pixels."""

    model: str = "qwen2.5-vl-3b"
    """What is planned: published sizes by their name (qwen2.5-vl-3b, qwen2.5-vl-7b), preset:NAME, a checkpoint
    that comes with vlnbench, by its name, or a folder (only its config is read)."""
    text_tokens: int = 260
    """Tokens of a question that are not images."""
    answer_tokens: int = 24
    """Tokens of an answer."""
    attn: Literal["sdpa", "eager"] = "sdpa"
    """Attention of the language model."""

    @classmethod
    def settings_of(cls, options: TrainOptions) -> dict[str, object]:
        eager = isinstance(options, QwenVLTraining) and options.attn == "eager"
        return {**super().settings_of(options), "attn": "eager" if eager else "sdpa"}


@dataclass(frozen=True, kw_only=True)
class QwenVLInference(InferenceOptions):
    """Planning what a Qwen2.5-VL needs while it acts; frames are of 640 x 480 pixels."""

    model: str = "qwen2.5-vl-7b"
    """What is planned: published sizes by their name (qwen2.5-vl-3b, qwen2.5-vl-7b), preset:NAME, a checkpoint
    that comes with vlnbench, by its name, or a folder (only its config is read)."""
    history: int = 4
    """Earlier frames shown beside the current one."""
    max_pixels: int = MOST_PIXELS
    """Pixels of a frame at most; every 28 x 28 of them take one position."""
    text_tokens: int = 260
    """Tokens of a question that are not images; long RxR instructions make it about 430."""

    def check(self) -> None:
        super().check()
        at_least("history", self.history, 0)
        at_least("max_pixels", self.max_pixels, 4 * 28 * 28)
        at_least("text_tokens", self.text_tokens, 1)
