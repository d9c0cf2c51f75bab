"""A StreamVLN small enough to train on the CPU, and requests for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.streamvln.options import FAMILY, STREAMVLN_8B, StreamVLNPlanning
from tests.families import Whole
from vlnbench.training.family.find import find_family
from vlnbench.training.memory.objective import StepMemory
from vlnbench.training.memory.trace import Trace, trace

SMALL: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "mm_hidden_size": 64,
    "num_frames": 16,
    "num_history": 4,
    "vision_config": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "image_size": 56,
        "patch_size": 14,
    },
}


def write_small(folder: Path) -> Path:
    """A checkpoint folder with a config.json and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(STREAMVLN_8B) | SMALL))
    return folder


def small_request(folder: Path, parts: tuple[str, ...], **changes: Any) -> StreamVLNPlanning:
    request = StreamVLNPlanning(
        model=str(folder), tunable_parts=parts, batch=2, frames=16, history=4, future_steps=4, text_tokens=120
    )
    return replace(request, **changes)


def config_of(model: str) -> Any:
    """The sizes of a network by whatever name."""
    _, source = find_family("", model, "--model")
    return Whole(FAMILY).config(source, StreamVLNPlanning())


def traced(request: StreamVLNPlanning) -> Trace:
    """The trace of a setting."""
    return trace(*find_family("", request.model, "--model"), request, StepMemory())
