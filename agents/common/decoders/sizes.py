"""Sizes of language models that compute as Qwen2 does, and of networks that join one to a vision tower."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from agents.common.checkpoints.files import MAX_LAYERS, Fields
from agents.common.towers.siglip import VisionGeometry, read_vision


@dataclass(frozen=True)
class LanguageSizes:
    """Sizes of a language model. `tied`: whether its output layer has the embeddings' numbers."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    rope_theta: float
    rms_norm_eps: float
    tied: bool

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class WindowedSizes(LanguageSizes):
    """Sizes of a network that looks through SigLIP and reads an episode in windows of turns, and its rhythm.

    Steps are simulator steps, `num_history` counts memory frames; see `Windows`.
    """

    max_position_embeddings: int
    attention_dropout: float
    vision: VisionGeometry
    num_history: int
    num_frames: int
    num_future_steps: int

    @property
    def image_tokens(self) -> int:
        """Embeddings per image after pooling."""
        return math.ceil(self.vision.grid / 2) ** 2


def language_sizes(fields: Fields, *rotary: str) -> LanguageSizes:
    """Sizes from the fields of a config.json; see `flat_fields`.

    rotary: kinds of `rope_scaling` that are computed beside "default"; stretched positions would be as plain ones.
    Raises UsageError for a bad field.
    """
    fields.choice("hidden_act", "silu", default="silu")
    fields.choice("use_sliding_window", False, default=False)
    where = next((name for name in ("rope_parameters", "rope_scaling") if name in fields.values), "")
    if isinstance(scaling := fields.values.get(where), dict):
        kind = "rope_type" if "rope_type" in scaling else "type"
        Fields(scaling, f"{fields.where}: {where}").choice(kind, "default", *rotary, default="default")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads")
    if hidden % (2 * heads):
        raise fields.error("hidden_size", f"an even multiple of num_attention_heads ({heads})")
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    return LanguageSizes(
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=fields.integer("num_hidden_layers", most=MAX_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=fields.integer("vocab_size"),
        rope_theta=fields.number("rope_theta"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        tied=fields.choice("tie_word_embeddings", False, True, default=False),
    )


def read_sizes(fields: Fields, vision_tower: Path | None) -> WindowedSizes:
    """Sizes from a config.json; vision_tower: see `read_vision`. Raises UsageError for a bad field."""
    return WindowedSizes(
        **vars(language_sizes(fields)),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        attention_dropout=fields.number("attention_dropout", default=0.0),
        vision=read_vision(fields, vision_tower),
        num_history=fields.integer("num_history", default=8),  # null would make every past frame a memory frame
        num_frames=fields.integer("num_frames", default=32),
        num_future_steps=fields.integer("num_future_steps", default=4),
    )
