"""Qwen2.5-VL's tokens: its chat blocks, what stands for an image, and how answers end."""

from __future__ import annotations

from pathlib import Path

from agents.common.checkpoints import files
from agents.common.checkpoints.files import GENERATION, GenerationSettings
from agents.common.checkpoints.tokenizer import Tokenizer

IMAGE = "<|image_pad|>"
SHOWN = f"<|vision_start|>{IMAGE}<|vision_end|>"
BLOCK_START, BLOCK_END = "<|im_start|>", "<|im_end|>"
TOKENS = (BLOCK_START, BLOCK_END, "<|vision_start|>", IMAGE, "<|vision_end|>", "\n")
"""What has to be one token each."""

PROCESSOR_FILES = ("preprocessor_config.json", "chat_template.json")
"""Read by other programs only: what they say is fixed here, in `image` and in a model's prompt."""


def chat(*blocks: tuple[str, str]) -> str:
    """A chat of (role, text) up to where the model answers."""
    text = "".join(f"{BLOCK_START}{role}\n{content}{BLOCK_END}\n" for role, content in blocks)
    return f"{text}{BLOCK_START}assistant\n"


def generation_settings(folder: Path, tokenizer: Tokenizer) -> GenerationSettings:
    """How answers are decoded: they end with the end of a chat block only, whatever else the folder's
    generation_config.json names; its repetition penalty holds."""
    (end,) = tokenizer.encode(BLOCK_END, add_special_tokens=False)
    if not (folder / GENERATION).is_file():
        return GenerationSettings(frozenset({end}))
    return GenerationSettings(frozenset({end}), files.generation_settings(folder).repetition_penalty)
