"""A small Qwen2.5-VL with random weights and a tokenizer of bytes, made without a download."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agents.common.answers.names import NAMES
from agents.common.checkpoints.files import GENERATION
from agents.qwen_vl.checkpoint import save
from agents.qwen_vl.config import ARCHITECTURE, parse_config
from agents.qwen_vl.network import QwenVL

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
WORDS = (*NAMES, "<answer>", "</answer>", "<think>", "</think>")
"""One token each, so that a small network's answers are short."""
BYTES = 256
END, IMAGE = BYTES + SPECIAL.index("<|im_end|>"), BYTES + SPECIAL.index("<|image_pad|>")
ROWS = 288

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "qwen-vl-tiny": {
        "model_type": "qwen2_5_vl",
        "architectures": [ARCHITECTURE],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": ROWS,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "default", "mrope_section": [2, 3, 3]},
        "rms_norm_eps": 1e-6,
        "image_token_id": IMAGE,
        "eos_token_id": END,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vision_config": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "depth": 2,
            "num_heads": 2,
            "window_size": 112,
            "fullatt_block_indexes": [1],
            "out_hidden_size": 64,
        },
    }
}


def create(config: Mapping[str, Any], folder: Path, seed: int) -> None:
    """Write a checkpoint folder. The same arguments give the same bytes. Raises UsageError if `folder` exists."""
    with tempfile.TemporaryDirectory() as made:
        source = Path(made)
        _write_tokenizer(source)
        (source / GENERATION).write_text(json.dumps({"eos_token_id": [END]}, indent=2) + "\n")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = QwenVL(parse_config(config, "preset"))
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    torch.nn.init.normal_(parameter, std=0.02 if len(parameter) == ROWS else 0.05)
        save(model, folder, source=source)


def _write_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in WORDS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "additional_special_tokens": list(SPECIAL[1:]),
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 32768,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
