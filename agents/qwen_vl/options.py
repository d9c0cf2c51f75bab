"""Options of the Qwen2.5-VL agent. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vlnbench.errors import UsageError
from vlnbench.rollout.agent_options import CheckpointOptions

MOST_CONSTRAINED = 6


@dataclass(frozen=True, kw_only=True)
class QwenVLOptions(CheckpointOptions):
    """How a plain Qwen2.5-VL checkpoint is loaded and asked; the question is that of the agent `openai`."""

    tokenizer: Path | None = None
    """Folder with the tokenizer's files, where the checkpoint has none."""
    attn: Literal["auto", "eager", "sdpa"] = "auto"
    """Attention of the language model; auto is sdpa."""
    max_new_tokens: int = 64
    """Tokens of one answer at most; thinking takes hundreds."""
    prompt: Path | None = None
    """File with the prompt; default agents/common/prompts/navigation.txt."""
    history: int = 4
    """Earlier frames shown beside the current one, spread evenly over the episode so far."""
    actions_per_answer: int = 4
    """Actions in one answer at most; they are done before the model is asked again."""
    answers: Literal["plain", "tagged"] = "plain"
    """Names of actions alone, or within <answer> tags (VLM-R1), before which there may be <think> tags."""
    constrained: bool = False
    """Let nothing be answered but what can be read, without thinking; for up to 6 actions per answer."""
    max_pixels: int = 401_408
    """Pixels of a frame at most; every 28 x 28 of them take one position."""
    turn_deg: float = 15.0
    """Degrees of a turn that the prompt speaks of; a benchmark with another is refused."""

    def check(self) -> None:
        super().check()
        if self.constrained and self.actions_per_answer > MOST_CONSTRAINED:
            raise UsageError(
                f"--constrained --actions-per-answer {self.actions_per_answer}: expected {MOST_CONSTRAINED} or "
                "fewer, for all answers there are are written down"
            )
        self.at_least(max_new_tokens=1, history=0, actions_per_answer=1, max_pixels=4 * 28 * 28, turn_deg=1)
