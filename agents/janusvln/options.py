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
    num_history: int | None = None
    """Earlier frames shown beside the current one, spread evenly over the episode so far; default the
    checkpoint's, 8 as published."""
    first_frames: int = 8
    """Frames from the start of an episode of which VGGT keeps keys and values."""
    recent_frames: int = 48
    """The same of the latest frames. Fewer need less memory, 0.15 GB each with the published sizes, and answer
    otherwise."""
    image_width: int | None = None
    """Pixels to which frames are scaled for both encoders, a multiple of 28; default the checkpoint's, 644 as
    published."""
    max_steps: int = 400
    """Step from which on every action is STOP; a STOP near the goal succeeds. 400 as published; 500 is the
    benchmarks' own limit."""

    def check(self) -> None:
        super().check()
        self.at_least(max_new_tokens=1, num_history=1, first_frames=1, recent_frames=1, max_steps=1)
