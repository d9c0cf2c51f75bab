"""A StreamVLN of a few thousand parameters and images of 96 pixels, for tests without recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from agents.streamvln.network import StreamVLN, StreamVLNConfig, parse_config

END = 49
"""The token that ends an answer."""


def tiny_raw(**changes: Any) -> dict[str, Any]:
    """A config.json's content; images of 96 pixels become 3 x 3 embeddings."""
    return {
        "model_type": "llava_qwen",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 50,
        "max_position_embeddings": 512,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "mm_hidden_size": 24,
        "mm_projector_type": "mlp2x_gelu",
        "mm_spatial_pool_mode": "bilinear",
        "mm_tunable_parts": "mm_mlp_adapter,mm_language_model",
        "num_history": 2,
        "num_future_steps": 4,
        "num_frames": 8,
        "torch_dtype": "float32",
        "eos_token_id": END,
        "vision_config": {
            "hidden_size": 24,
            "intermediate_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 96,
            "patch_size": 16,
        },
        **changes,
    }


def tiny_config(**changes: Any) -> StreamVLNConfig:
    return parse_config(tiny_raw(**changes), "config.json")


def tiny_model(attn: str = "sdpa", **changes: Any) -> StreamVLN:
    """Random weights, always the same, wide enough apart for greedy decoding to be clear-cut."""
    torch.manual_seed(0)
    model = StreamVLN(tiny_config(**changes), attn).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def tiny_images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 3, 96, 96, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def write_tiny(folder: Path, **changes: Any) -> StreamVLN:
    """A checkpoint folder without tokenizer; returns the model whose weights it holds."""
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_model()
    (folder / "config.json").write_text(json.dumps(tiny_raw(**changes)))
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    return model
