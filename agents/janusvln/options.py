"""Options of the JanusVLN agent. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vlnbench.rollout.agent_options import CheckpointOptions


@dataclass(frozen=True, kw_only=True)
class JanusVLNOptions(CheckpointOptions):
    """How JanusVLN is loaded and run."""

    tokenizer: Path | None = None
    """Folder with the tokenizer's files, where the checkpoint has none."""
    attn: Literal["auto", "eager", "sdpa"] = "auto"
    """Attention of the language model; auto is SDPA, which has PyTorch's own flash kernels."""
    max_new_tokens: int = 24
    """Tokens of one answer at most."""
    num_history: int = 8
    """Earlier frames shown beside the current one, spread evenly over the episode so far."""
    max_steps: int = 400
    """Step from which on every action is STOP; a STOP near the goal succeeds. 400 as published; 500 is the
    benchmarks' own limit."""

    def check(self) -> None:
        super().check()
        self.at_least(max_new_tokens=1, num_history=1, max_steps=1)
