"""What config.json of a plain Qwen2.5-VL checkpoint says, field by field, in both layouts of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.common.files import CONFIG, read_json
from agents.janusvln import config as shared
from agents.janusvln.config import JanusVLNConfig
from vlnbench.errors import UsageError

ARCHITECTURE = "Qwen2_5_VLForConditionalGeneration"

QwenVLConfig = JanusVLNConfig
"""JanusVLN is a Qwen2.5-VL and more; the fields of what it adds mean nothing here."""


def read_config(folder: Path) -> QwenVLConfig:
    """Read config.json of a checkpoint folder.

    Raises UsageError for a folder that holds no Qwen2.5-VL checkpoint and for the first field that does not fit.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise UsageError(f"{folder} is not a checkpoint: expected a folder with config.json in it")
    return parse_config(read_json(path), str(path))


def parse_config(raw: Mapping[str, Any], where: str) -> QwenVLConfig:
    """The same from a config.json's content; `where` is its name in messages.

    transformers 5 writes the language model's sizes under `text_config` and its rotary settings as
    `rope_parameters`; 4 writes them beside everything else.
    """
    if raw.get("architectures") != [ARCHITECTURE]:
        raise UsageError(f'{where}: architectures: expected ["{ARCHITECTURE}"] (a plain Qwen2.5-VL checkpoint)')
    text = raw.get("text_config")
    flat = {**raw, **(text if isinstance(text, dict) else {})}
    rope = flat.get("rope_parameters")
    if isinstance(rope, dict):
        flat |= {"rope_scaling": {"mrope_section": rope.get("mrope_section")}}
        flat.setdefault("rope_theta", rope.get("rope_theta"))
    flat |= {"model_type": raw.get("model_type"), "architectures": [shared.ARCHITECTURE], "lam": 0.0}
    flat["tie_word_embeddings"] = raw.get("tie_word_embeddings", flat.get("tie_word_embeddings", False))
    return replace(shared.parse_config(flat, where), raw=dict(raw))
