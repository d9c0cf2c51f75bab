"""Published sizes of JanusVLN, which can be planned without weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.janusvln.config import ARCHITECTURE, MODEL_TYPE, GeometrySizes

VGGT_1B = GeometrySizes(
    width=1024,
    intermediate_size=4096,
    depth=24,
    heads=16,
    registers=4,
    dino_intermediate_size=4096,
    dino_depth=24,
    dino_registers=4,
    position_side=37,
    head_width=256,
    head_channels=(256, 512, 1024, 1024),
)
"""VGGT (arXiv 2503.11347)."""

_VISION: Mapping[str, Any] = {
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "depth": 32,
    "num_heads": 16,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
_COMMON: Mapping[str, Any] = {
    "model_type": MODEL_TYPE,
    "rope_theta": 1e6,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "rms_norm_eps": 1e-6,
    "image_token_id": 151655,
    "torch_dtype": "bfloat16",
}
QWEN_3B: Mapping[str, Any] = {
    **_COMMON,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "vision_config": {**_VISION, "out_hidden_size": 2048},
}
QWEN_7B: Mapping[str, Any] = {
    **_COMMON,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "vision_config": {**_VISION, "out_hidden_size": 3584},
}
"""Qwen2.5-VL (arXiv 2502.13923), but for the name of the network."""

_JANUS: Mapping[str, Any] = {"architectures": [ARCHITECTURE], "lam": 0.2}

SIZES: Mapping[str, Mapping[str, Any]] = {
    "janusvln-7b": {**QWEN_7B, **_JANUS},
    "janusvln-3b": {**QWEN_3B, **_JANUS},
}
"""config.json by name: of the released JanusVLN (Qwen2.5-VL-7B: 9,314,832,390 parameters with VGGT), and of the
same on Qwen2.5-VL-3B, which its code can train (4,770,995,718)."""
