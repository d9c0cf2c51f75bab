"""Options of language models with eyes. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlnbench.rollout.agent_options import CheckpointOptions
from vlnbench.training.options import PlanOptions, TrainOptions
from vlnbench.util.bounds import Count


@dataclass(frozen=True, kw_only=True)
class LanguageModelOptions(CheckpointOptions):
    """How a language model is loaded and run."""

    attn: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    """Attention of the language model; auto takes flash attention where it is installed, else SDPA."""
    max_new_tokens: Count = 512
    """Tokens of one answer at most."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelPlanning(PlanOptions):
    """Memory planning of a language model."""

    attn: Literal["sdpa", "flash_attention_2", "eager"] = "sdpa"
    """Attention of the language model; the first two need the same memory."""

    @classmethod
    def settings_of(cls, options: TrainOptions) -> dict[str, object]:
        eager = getattr(options, "attn", None) == "eager"
        return {**super().settings_of(options), "attn": "eager" if eager else "sdpa"}
