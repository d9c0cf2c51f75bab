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

_QWEN: Mapping[str, Any] = {
    "model_type": MODEL_TYPE,
    "architectures": [ARCHITECTURE],
    "rope_theta": 1e6,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "rms_norm_eps": 1e-6,
    "image_token_id": 151655,
    "lam": 0.2,
    "torch_dtype": "bfloat16",
}

SIZES: Mapping[str, Mapping[str, Any]] = {
    "janusvln-7b": {
        **_QWEN,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "vision_config": {"hidden_size": 1280, "out_hidden_size": 3584},
    },
    "janusvln-3b": {
        **_QWEN,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "vision_config": {"hidden_size": 1280, "out_hidden_size": 2048},
    },
}
"""config.json by name: of the released JanusVLN (Qwen2.5-VL-7B: 9,314,832,390 parameters with VGGT), and of the
same on Qwen2.5-VL-3B, which its code can train (4,770,995,718)."""
