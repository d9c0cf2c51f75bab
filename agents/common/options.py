"""Options of agents that are language models with eyes. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlnbench.rollout.agent_options import CheckpointOptions
from vlnbench.util.bounds import Count


@dataclass(frozen=True, kw_only=True)
class LanguageModelOptions(CheckpointOptions):
    """How a language model is loaded and run."""

    attn: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    """Attention of the language model; auto takes flash attention where it is installed, else SDPA."""
    max_new_tokens: Count = 512
    """Tokens of one answer at most."""
