"""Sizes of a network built on Qwen2.5-VL: what its config.json says, field by field, and published ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agents.common.checkpoints.files import CONFIG, DTYPES, MAX_LAYERS, Fields, read_json
from vlnbench.training.family.sources import no_checkpoint

MODEL_TYPE = "qwen2_5_vl"
PATCH = 14
"""Side of a patch in pixels, in the vision tower."""
MERGE = 2
"""Patches along one side of what becomes one embedding."""
BLOCK = PATCH * MERGE
"""Pixels along one side of what becomes one embedding."""


@dataclass(frozen=True)
class VisionSizes:
    """Sizes of Qwen2.5-VL's vision tower. `window` is the side of an attention window in pixels; the blocks
    `full_attention` see the whole image."""

    width: int
    intermediate_size: int
    depth: int
    heads: int
    window: int
    full_attention: tuple[int, ...]


@dataclass(frozen=True)
class QwenConfig:
    """Sizes of language model and vision tower.

    `raw` is config.json as it was read; saving writes it back with what changed.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    rope_theta: float
    rope_sections: tuple[int, ...]
    rms_norm_eps: float
    tied: bool
    image_token: int
    vision: VisionSizes
    dtype: torch.dtype
    raw: Mapping[str, Any]

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


def config_file(folder: Path) -> tuple[dict[str, Any], str]:
    """Content and name of a checkpoint folder's config.json. Raises UsageError where there is none."""
    path = folder / CONFIG
    if not path.is_file():
        raise no_checkpoint(folder)
    return read_json(path), str(path)


def qwen_config(raw: Mapping[str, Any], where: str, architecture: str, kind: str) -> QwenConfig:
    """The sizes in a config.json's content, in both layouts of transformers.

    transformers 5 writes the language model's sizes under `text_config` and its rotary settings as
    `rope_parameters`; 4 writes them beside everything else. architecture: the network's name there; kind: what
    people call it. Raises UsageError, which begins with `where`, for the first field that does not fit.
    """
    text = raw.get("text_config")
    flat = {**raw, **(text if isinstance(text, dict) else {})}
    rope = flat.get("rope_parameters")
    if isinstance(rope, dict):
        kind = rope.get("rope_type", "default")
        flat |= {"rope_scaling": {"mrope_section": rope.get("mrope_section"), "type": kind}}
        flat.setdefault("rope_theta", rope.get("rope_theta"))
    flat["tie_word_embeddings"] = raw.get("tie_word_embeddings", flat.get("tie_word_embeddings", False))
    fields = Fields(flat, where)
    if raw.get("model_type") != MODEL_TYPE:
        raise fields.error("model_type", f'"{MODEL_TYPE}" (a {kind} checkpoint)')
    if raw.get("architectures") != [architecture]:
        raise fields.error("architectures", f'["{architecture}"] (a {kind} checkpoint)')
    fields.choice("hidden_act", "silu", default="silu")
    fields.choice("use_sliding_window", False, default=False)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads")
    if hidden % (2 * heads):
        raise fields.error("hidden_size", f"an even multiple of num_attention_heads ({heads})")
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    return QwenConfig(
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=fields.integer("num_hidden_layers", most=MAX_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=fields.integer("vocab_size"),
        rope_theta=fields.number("rope_theta"),
        rope_sections=_sections(fields, hidden // heads // 2),
        rms_norm_eps=fields.number("rms_norm_eps"),
        tied=fields.choice("tie_word_embeddings", False, True, default=False),
        image_token=fields.integer("image_token_id"),
        vision=_vision(fields, hidden),
        dtype=DTYPES[fields.choice("torch_dtype", *DTYPES, default=flat.get("dtype", "bfloat16"))],
        raw=dict(raw),
    )


def _sections(fields: Fields, count: int) -> tuple[int, ...]:
    """How many of the `count` rotary frequencies belong to time, height and width."""
    scaling = fields.values.get("rope_scaling")
    if not isinstance(scaling, dict):
        raise fields.error("rope_scaling", "an object with mrope_section")
    own = Fields(scaling, f"{fields.where}: rope_scaling")
    own.choice("type", "default", "mrope", default="default")
    found = scaling.get("mrope_section")
    whole = isinstance(found, list) and all(type(part) is int and part >= 0 for part in found)
    if not whole or len(found or ()) != 3 or sum(found or ()) != count:
        raise own.error("mrope_section", f"three numbers with sum {count}, half of a head's width")
    return tuple(found or ())


def _vision(fields: Fields, hidden: int) -> VisionSizes:
    """Sizes of the vision tower; fields that transformers leaves out at their default take that."""
    entry = fields.values.get("vision_config")
    if not isinstance(entry, dict):
        raise fields.error("vision_config", "an object with the sizes of Qwen2.5-VL's vision tower")
    own = Fields(entry, f"{fields.where}: vision_config")
    own.choice("hidden_act", "silu", default="silu")
    own.choice("in_channels", 3, default=3)
    own.choice("patch_size", PATCH, default=PATCH)
    own.choice("spatial_merge_size", MERGE, default=MERGE)
    own.choice("temporal_patch_size", 2, default=2)
    own.choice("out_hidden_size", hidden, default=3584)
    width, heads = own.integer("hidden_size"), own.integer("num_heads", 16)
    depth = own.integer("depth", 32, MAX_LAYERS)
    if width % (4 * heads):
        raise own.error("hidden_size", f"a multiple of 4 times num_heads ({heads})")
    window = own.integer("window_size", 112)
    if window % BLOCK:
        raise own.error("window_size", f"a multiple of {BLOCK} pixels")
    full = entry.get("fullatt_block_indexes", [7, 15, 23, 31])
    if not isinstance(full, list) or not all(type(block) is int and 0 <= block < depth for block in full):
        raise own.error("fullatt_block_indexes", f"a list of numbers from 0 to {depth - 1}")
    return VisionSizes(width, own.integer("intermediate_size", 3420), depth, heads, window, tuple(full))


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
