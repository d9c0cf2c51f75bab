"""Small JanusVLN models to train from scratch: sizes, a tokenizer of their own and random weights."""

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
from agents.common.qwen2_5_vl.checkpoint import save
from agents.common.qwen2_5_vl.config import MODEL_TYPE
from agents.common.qwen2_5_vl.tokens import IMAGE, TOKENS
from agents.common.towers.vggt_sizes import GeometrySizes
from agents.janusvln.agent import LABELS, lesson_text, question_text
from agents.janusvln.network import JanusVLN, parse_config
from agents.janusvln.options import ARCHITECTURE

SPREAD = 0.02
"""Standard deviation of the tokens and tables that torch leaves at zero."""


@dataclass(frozen=True)
class Preset(LanguageSizes):
    """Sizes of a small model. `image_width` in pixels; `vision_*` are Qwen's tower, `geometry` is VGGT."""

    vision_width: int
    vision_mlp: int
    blocks: int
    vision_heads: int
    image_width: int
    merger: int
    geometry: GeometrySizes

    def config(self, vocab_size: int = 1024, end: int = 0, image: int = 1) -> dict[str, Any]:
        """config.json of a model of these sizes, in the fields of the published checkpoints."""
        half = self.hidden_size // self.heads // 2
        return {
            "architectures": [ARCHITECTURE],
            "model_type": MODEL_TYPE,
            **self.language(vocab_size, end, end),
            "rope_scaling": {"type": "mrope", "mrope_section": [half - 2 * (half // 3), half // 3, half // 3]},
            "image_token_id": image,
            "lam": 0.2,
            "vggt_merger_hidden_dim": self.merger,
            "image_width": self.image_width,
            "vision_config": {
                "hidden_size": self.vision_width,
                "intermediate_size": self.vision_mlp,
                "depth": self.blocks,
                "num_heads": self.vision_heads,
                "window_size": 112,
                "fullatt_block_indexes": [self.blocks - 1],
                "out_hidden_size": self.hidden_size,
            },
        }


PRESETS = {
    "janusvln-tiny": Preset(
        hidden_size=128,
        intermediate_size=384,
        layers=4,
        heads=4,
        kv_heads=2,
        vision_width=128,
        vision_mlp=256,
        blocks=2,
        vision_heads=4,
        image_width=112,
        merger=128,
        geometry=GeometrySizes(
            width=32,
            intermediate_size=64,
            depth=2,
            heads=2,
            registers=2,
            dino_intermediate_size=64,
            dino_depth=1,
            dino_registers=2,
            position_side=8,
            head_width=4,
            head_channels=(4, 4, 4, 4),
        ),
        vocabulary=1000,
    ),
}


def create(preset: Preset, folder: Path, texts: Iterable[str], seed: int) -> None:
    """Write a checkpoint folder with random weights and a tokenizer learned from instructions.

    The same arguments give the same bytes. Raises UsageError if `folder` exists.
    """
    with tempfile.TemporaryDirectory() as made:
        source = Path(made)
        marks = [token for token in TOKENS if token.startswith("<") and token not in (BLOCK_START, BLOCK_END)]
        ids = write_tokenizer(source, texts, preset.vocabulary, (*LABELS, *_fixed_texts()), marks)
        rows = -(-len(ids) // 64) * 64
        config = preset.config(rows, ids[BLOCK_END], ids[IMAGE])
        generation = {"bos_token_id": ids[END], "eos_token_id": [ids[BLOCK_END], ids[END]]}
        (source / GENERATION).write_text(json.dumps(generation, indent=2) + "\n")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = JanusVLN(parse_config(config, "preset"), preset.geometry)
            for parameter in model.vggt.aggregator.parameters():
                if not bool(parameter.any()):
                    torch.nn.init.normal_(parameter, std=SPREAD)
        save(model, folder, source=source)


def _fixed_texts() -> list[str]:
    """What every question says alike. One token each: a small model's time goes into the sequence's length."""
    pieces = []
    for written in (question_text("\0", 2), lesson_text("\0", 2)):
        for part in written.split("\0"):
            between = part.split(IMAGE)
            pieces += [piece.removesuffix("<|vision_start|>").removeprefix("<|vision_end|>") for piece in between]
    return [piece for piece in dict.fromkeys(pieces) if len(piece) > 1]
