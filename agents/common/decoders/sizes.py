"""Sizes of a network that looks through SigLIP, speaks as Qwen2 and reads an episode in windows of turns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from agents.common.checkpoints.files import MAX_LAYERS, Fields
from agents.common.towers.siglip import VisionGeometry, read_vision


@dataclass(frozen=True)
class WindowedSizes:
    """Sizes and rhythm. Steps are simulator steps, `num_history` counts memory frames; see `Windows`."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    attention_dropout: float
    vision: VisionGeometry
    num_history: int
    num_frames: int
    num_future_steps: int

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def image_tokens(self) -> int:
        """Embeddings per image after pooling."""
        return math.ceil(self.vision.grid / 2) ** 2


def read_sizes(fields: Fields, vision_tower: Path | None) -> WindowedSizes:
    """Sizes from a config.json; vision_tower: see `read_vision`. Raises UsageError for a bad field."""
    fields.choice("hidden_act", "silu", default="silu")
    fields.choice("tie_word_embeddings", False, default=False)
    fields.choice("use_sliding_window", False, default=False)
    fields = _with_rotary(fields)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads")
    if hidden % (2 * heads):
        raise fields.error("hidden_size", f"an even multiple of num_attention_heads ({heads})")
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    return WindowedSizes(
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=fields.integer("num_hidden_layers", most=MAX_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=fields.integer("vocab_size"),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        rope_theta=fields.number("rope_theta"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        attention_dropout=fields.number("attention_dropout", default=0.0),
        vision=read_vision(fields, vision_tower),
        num_history=fields.integer("num_history", default=8),  # null would make every past frame a memory frame
        num_frames=fields.integer("num_frames", default=32),
        num_future_steps=fields.integer("num_future_steps", default=4),
    )


def _with_rotary(fields: Fields) -> Fields:
    """The fields with `rope_theta` among them; transformers 5 writes it into `rope_parameters`."""
    for name in ("rope_parameters", "rope_scaling"):
        found = fields.values.get(name)
        if isinstance(found, dict):
            own = Fields(found, f"{fields.where}: {name}")
            for kind in ("rope_type", "type"):  # stretched positions would be computed as plain ones
                own.choice(kind, "default", default="default")
            fields = Fields({"rope_theta": found.get("rope_theta"), **fields.values}, fields.where)
    return fields
