"""Sizes of a network that looks through SigLIP, speaks as Qwen2 and reads an episode in windows of turns."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agents.common.towers.siglip import VisionGeometry


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
