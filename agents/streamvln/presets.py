"""Small StreamVLN models to train from scratch: sizes, a tokenizer of their own and random weights."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agents.common.checkpoints.files import GENERATION
from agents.common.checkpoints.new_tokenizer import BLOCK_END, BLOCK_START, END, write_tokenizer
from agents.common.language.preset import LanguageSizes
from agents.common.sets.conversations import SYMBOLS
from agents.streamvln.checkpoint import save
from agents.streamvln.config import MODEL_TYPE, parse_config
from agents.streamvln.network.model import StreamVLN
from agents.streamvln.prompt import PHRASES, SYSTEM, task_text


@dataclass(frozen=True)
class Preset(LanguageSizes):
    """Sizes of a small model. `image_size` and `patch_size` in pixels; `blocks` of the tower as they are used."""

    vision_width: int
    vision_mlp: int
    blocks: int
    vision_heads: int
    image_size: int
    patch_size: int

    def config(self, vocab_size: int, end: int, block_end: int) -> dict[str, Any]:
        """config.json of a model of these sizes, in the fields of the published checkpoints."""
        tower = f"siglip-{self.vision_width}-patch{self.patch_size}-{self.image_size}"
        return {
            "architectures": ["StreamVLNForCausalLM"],
            "model_type": MODEL_TYPE,
            **self.language(vocab_size, end, block_end),
            "max_position_embeddings": 4096,
            "mm_hidden_size": self.vision_width,
            "mm_projector_type": "mlp2x_gelu",
            "mm_spatial_pool_mode": "bilinear",
            "mm_vision_tower": tower,
            "mm_vision_select_feature": "patch",
            "mm_vision_select_layer": -2,
            "num_history": 8,
            "num_future_steps": 4,
            "vision_config": {
                "hidden_size": self.vision_width,
                "intermediate_size": self.vision_mlp,
                "num_hidden_layers": self.blocks + 1,
                "num_attention_heads": self.vision_heads,
                "image_size": self.image_size,
                "patch_size": self.patch_size,
            },
        }


PRESETS = {
    "streamvln-tiny": Preset(
        hidden_size=128,
        intermediate_size=384,
        layers=4,
        heads=4,
        kv_heads=2,
        vision_width=128,
        vision_mlp=256,
        blocks=2,
        vision_heads=4,
        image_size=96,
        patch_size=12,
        vocabulary=1000,
    ),
}


def create(preset: Preset, folder: Path, texts: Iterable[str], seed: int) -> None:
    """Write a checkpoint folder with random weights and a tokenizer learned from instructions.

    The same arguments give the same bytes. Raises UsageError if `folder` exists.
    """
    with tempfile.TemporaryDirectory() as made:
        source = Path(made)
        ids = write_tokenizer(source, texts, preset.vocabulary, (*SYMBOLS, *_fixed_texts()))
        rows = -(-len(ids) // 64) * 64
        config = preset.config(rows, ids[END], ids[BLOCK_END])
        generation = {
            "bos_token_id": ids[END],
            "eos_token_id": [ids[BLOCK_END], ids[END]],
            "pad_token_id": ids[END],
        }
        (source / GENERATION).write_text(json.dumps(generation, indent=2) + "\n")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = StreamVLN(parse_config(config, "preset"))
        save(model, folder, source=source)


def _fixed_texts() -> list[str]:
    """What every prompt says alike. One token each: a small model's time goes into the sequence's length."""
    before, after = task_text("\0").split("\0")
    memory = [" These are your historical observations", " These are your historical observations:"]
    starts = [f"{BLOCK_START}{role}\n" for role in ("system", "user", "assistant")]
    unanswered = f"{starts[-1]}{BLOCK_END}\n"
    seen = f".{BLOCK_END}\n"
    return [SYSTEM, before.rstrip(), after, *memory, *PHRASES, *starts, unanswered, seen]
