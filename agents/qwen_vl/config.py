"""What config.json of a plain Qwen2.5-VL checkpoint says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.common.qwen2_5_vl.config import QwenConfig, config_file, qwen_config

ARCHITECTURE = "Qwen2_5_VLForConditionalGeneration"


def read_config(folder: Path) -> QwenConfig:
    """Read config.json of a checkpoint folder.

    Raises UsageError for a folder that holds no Qwen2.5-VL checkpoint and for the first field that does not fit.
    """
    return parse_config(*config_file(folder))


def parse_config(raw: Mapping[str, Any], where: str) -> QwenConfig:
    """The same from a config.json's content; `where` is its name in messages."""
    return qwen_config(raw, where, ARCHITECTURE, "plain Qwen2.5-VL")
