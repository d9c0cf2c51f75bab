"""Options of the StreamVLN agent. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agents.common.options import LanguageModelOptions
from agents.common.sight.options import FramesOptions


@dataclass(frozen=True, kw_only=True)
class StreamVLNOptions(FramesOptions, LanguageModelOptions):
    """How StreamVLN is loaded and run."""

    tokenizer: Path | None = None
    """Folder with the tokenizer's files, where the checkpoint has none."""
    vision_tower: Path | None = None
    """Folder with the config.json of the vision tower, where the checkpoint names one of another size."""
    compile: bool = False
    """Compile the model with torch.compile."""
