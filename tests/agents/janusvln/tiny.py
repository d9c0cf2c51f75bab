"""A JanusVLN of a few thousand parameters, weights by formula, for tests without recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from agents.common.towers.geometry_sizes import GeometrySizes
from agents.janusvln.network import JanusVLN, JanusVLNConfig, parse_config
from agents.janusvln.options import ARCHITECTURE

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
END, IMAGE = 258, 261
"""Ids of the end of a block and of an image: 256 bytes come first."""

SIZES = GeometrySizes(
    width=16,
    intermediate_size=24,
    depth=3,
    heads=2,
    registers=2,
    dino_intermediate_size=32,
    dino_depth=2,
    dino_registers=3,
    position_side=3,
    head_width=4,
    head_channels=(2, 3, 4, 5),
)


def tiny_raw(**changes: Any) -> dict[str, Any]:
    """A config.json's content. Windows are two embeddings wide."""
    return {
        "model_type": "qwen2_5_vl",
        "architectures": [ARCHITECTURE],
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 264,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "default", "mrope_section": [1, 1, 2]},
        "rms_norm_eps": 1e-6,
        "image_token_id": IMAGE,
        "eos_token_id": END,
        "vggt_merger_hidden_dim": 20,
        "lam": 0.2,
        "torch_dtype": "float32",
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 20,
            "depth": 2,
            "num_heads": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1],
            "out_hidden_size": 16,
        },
        **changes,
    }


def tiny_config(**changes: Any) -> JanusVLNConfig:
    return parse_config(tiny_raw(**changes), "config.json")


def tiny_model(eager: bool = False, **changes: Any) -> JanusVLN:
    """Weights by formula, the same on every machine: entry k of a parameter is a sin(0.37 k² + s), where s is the
    sum of the letters in its name modulo 97 and a is 0.35, or 2 over the root of the inputs in matrices; norms are
    1 more."""
    model = JanusVLN(tiny_config(**changes), SIZES, eager).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            phase = float(sum(map(ord, name)) % 97)
            scale = 2 / parameter[0].numel() ** 0.5 if parameter.ndim > 1 else 0.35
            values = scale * torch.sin(0.37 * torch.arange(parameter.numel(), dtype=torch.float64) ** 2 + phase)
            norm = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_((values + norm).reshape(parameter.shape))
    return model


def tiny_frames(count: int, height: int = 84, width: int = 140, seed: int = 0) -> Tensor:
    """Frames as after resizing, uint8 (count, height, width, 3), by formula; 84 x 140 are 3 x 5 embeddings."""
    n, y, x, c = torch.meshgrid(*(torch.arange(size) for size in (count, height, width, 3)), indexing="ij")
    return ((seed * 41 + n * 29 + y * (3 + c) + x * (5 - c) + c * 61) % 256).to(torch.uint8)


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of Qwen2's kind that knows bytes and special tokens, and no merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_tiny(folder: Path, **changes: Any) -> JanusVLN:
    """A whole checkpoint folder; returns the model whose weights it holds."""
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_model()
    (folder / "config.json").write_text(json.dumps(tiny_raw(**changes)))
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [END, 256], "repetition_penalty": 1.05})
    )
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder)
    return model
