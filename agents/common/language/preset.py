"""Sizes of the language model of a small network, and what config.json says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LanguageSizes:
    """A decoder of Qwen's kind; `vocabulary`: tokens that are learned from instructions at most."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int

    def language(self, vocab_size: int, end: int, answered: int) -> dict[str, Any]:
        """Fields of published checkpoints. end: the token that ends a text, answered: one that ends an answer."""
        return {
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e4,
            "vocab_size": vocab_size,
            "tie_word_embeddings": False,
            "bos_token_id": end,
            "eos_token_id": answered,
            "torch_dtype": "float32",
        }


@dataclass(frozen=True)
class SeeingSizes(LanguageSizes):
    """The same behind a SigLIP tower; `image_size` and `patch_size` in pixels; `blocks` as they are used."""

    vision_width: int
    vision_mlp: int
    blocks: int
    vision_heads: int
    image_size: int
    patch_size: int

    def tower(self) -> dict[str, Any]:
        """What a config.json says of the tower."""
        return {
            "hidden_size": self.vision_width,
            "intermediate_size": self.vision_mlp,
            "num_hidden_layers": self.blocks + 1,
            "num_attention_heads": self.vision_heads,
            "image_size": self.image_size,
            "patch_size": self.patch_size,
        }


TINY: dict[str, int] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "layers": 4,
    "heads": 4,
    "kv_heads": 2,
    "vision_width": 128,
    "vision_mlp": 256,
    "blocks": 2,
    "vision_heads": 4,
    "image_size": 96,
    "patch_size": 12,
    "vocabulary": 1000,
}
"""`SeeingSizes` of the small networks that tests and laptops train."""
