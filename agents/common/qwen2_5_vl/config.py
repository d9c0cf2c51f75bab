"""Sizes of a network built on Qwen2.5-VL: what its config.json says, field by field, and published ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agents.common.checkpoints.files import CONFIG, MAX_LAYERS, Fields, dtype_of, flat_fields, read_json
from agents.common.checkpoints.tied import tied_name
from agents.common.decoders.sizes import LanguageSizes, language_sizes
from vlnbench.training.family.sources import no_checkpoint

MODEL_TYPE = "qwen2_5_vl"
PATCH = 14
"""Side of a patch in pixels, in the vision tower."""
MERGE = 2
"""Patches along one side of what becomes one embedding."""
BLOCK = PATCH * MERGE
"""Pixels along one side of what becomes one embedding."""
NESTED = {"model.language_model.": "model.", "model.visual.": "visual."}
"""Beginnings of parameters' names as newer transformers have them, and as the released folders do."""


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
class QwenConfig(LanguageSizes):
    """Sizes of language model and vision tower.

    `raw` is config.json as it was read; saving writes it back with what changed.
    """

    rope_sections: tuple[int, ...]
    image_token: int
    vision: VisionSizes
    dtype: torch.dtype
    raw: Mapping[str, Any]


def config_file(folder: Path) -> tuple[dict[str, Any], str]:
    """Content and name of a checkpoint folder's config.json. Raises UsageError where there is none."""
    path = folder / CONFIG
    if not path.is_file():
        raise no_checkpoint(folder)
    return read_json(path), str(path)


def qwen_config(raw: Mapping[str, Any], where: str, architecture: str, kind: str) -> QwenConfig:
    """The sizes in a config.json's content, in every layout of transformers; see `flat_fields`.

    architecture: the network's name there; kind: what people call it. Raises UsageError, which begins with
    `where`, for the first field that does not fit.
    """
    fields = flat_fields(raw, where)
    if raw.get("model_type") != MODEL_TYPE:
        raise fields.error("model_type", f'"{MODEL_TYPE}" (a {kind} checkpoint)')
    if raw.get("architectures") != [architecture]:
        raise fields.error("architectures", f'["{architecture}"] (a {kind} checkpoint)')
    sizes = language_sizes(fields, "mrope")
    return QwenConfig(
        **vars(sizes),
        rope_sections=_sections(fields, sizes.head_dim // 2),
        image_token=fields.integer("image_token_id"),
        vision=_vision(fields, sizes.hidden_size),
        dtype=dtype_of(fields),
        raw=dict(raw),
    )


def released_name(tied: bool) -> Callable[[str], str]:
    """Of a network's parameters in a file: their names in the released folders.

    Since 4.52, transformers nests tower and language model below `model.`; whoever saves without turning the names
    back writes them so (`conversion_mapping.py`, `Qwen2VLForConditionalGeneration`, in transformers 5.23). An
    output layer that is `tied` to the embeddings has their name.
    """
    shared = tied_name(tied)

    def name_of(name: str) -> str:
        nested = next((each for each in NESTED if name.startswith(each)), "")
        return shared(NESTED.get(nested, "") + name.removeprefix(nested))

    return name_of


def _sections(fields: Fields, count: int) -> tuple[int, ...]:
    """How many of the `count` rotary frequencies belong to time, height and width."""
    scaling = fields.values.get("rope_scaling")
    if not isinstance(scaling, dict):
        raise fields.error("rope_scaling", "an object with mrope_section")
    found = scaling.get("mrope_section")
    whole = isinstance(found, list) and all(type(part) is int and part >= 0 for part in found)
    if not whole or len(found or ()) != 3 or sum(found or ()) != count:
        own = Fields(scaling, f"{fields.where}: rope_scaling")
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
