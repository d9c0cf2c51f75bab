"""Versions of transformers with which no Qwen2.5-VL model is run here."""

from __future__ import annotations

import re

from vlnbench.errors import UsageError

WRONG = (((5, 1, 0), (5, 1, 0)), ((5, 4, 0), (5, 5, 3)))
"""First and last version of each range whose Qwen2.5-VL gives images wrong positions (huggingface/transformers
pull request 45330), so that results made beside them cannot be compared with it."""


def check_transformers(version: str) -> None:
    """Raise UsageError for a version that gives images wrong positions."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if any(first <= numbers <= last for first, last in WRONG):
        raise UsageError(
            f"transformers {version} gives the images of Qwen2.5-VL wrong positions (5.1.0, 5.4.0 to 5.5.3): "
            "install another, e.g. pip install 'transformers>=5.6,<6'"
        )
