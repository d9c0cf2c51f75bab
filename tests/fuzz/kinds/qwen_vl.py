"""Checkpoints of Qwen2.5-VL, read as an agent does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.fuzz.judge import Builder
from tests.fuzz.kinds import checkpoints

SETTINGS = "tokenizer_config.json"

read = checkpoints.read
write = partial(checkpoints.write_one, "qwen")


def longest_as_text(folder: Path) -> None:
    settings = json.loads(checkpoints.honest()["qwen"][SETTINGS]) | {"model_max_length": "131072"}
    checkpoints.put(folder, "qwen", {SETTINGS: json.dumps(settings).encode()})


def name_that_a_terminal_obeys(folder: Path) -> None:
    """Of a token's description: the tokenizer's library prints the names that it does not know."""
    described = {"eos_token": {"content": "<|endoftext|>", "\x1b[31m": True}}
    checkpoints.put(folder, "qwen", {"special_tokens_map.json": json.dumps(described).encode()})


def described_token(folder: Path) -> None:
    """As earlier transformers wrote special tokens."""
    token = {"__type": "AddedToken", "content": "<|endoftext|>", "lstrip": False, "special": True}
    settings = json.loads(checkpoints.honest()["qwen"][SETTINGS]) | {"eos_token": token}
    checkpoints.put(folder, "qwen", {SETTINGS: json.dumps(settings).encode()})


corpus: Mapping[str, tuple[Builder, str]] = {
    "honest": checkpoints.honestly("qwen"),
    "a name that a terminal obeys": (name_that_a_terminal_obeys, "expected a name that can be printed"),
    "a described token": (described_token, ""),
    "a length that is text": (longest_as_text, "tokenizer cannot be read"),
}
