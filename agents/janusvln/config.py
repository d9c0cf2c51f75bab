"""What a JanusVLN checkpoint's config.json says, checked field by field, and what the shapes of its tensors say.

Format: the `qwen2_5_vl` config of transformers 4.50 with JanusVLN's additions (github.com/MIV-XJTU/JanusVLN). The
sizes of the VGGT aggregator are nowhere in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from agents.common.files import CONFIG, DTYPES, MAX_LAYERS, Fields, read_json
from vlnbench.errors import UsageError

MODEL_TYPE = "qwen2_5_vl"
ARCHITECTURE = "Qwen2_5_VLForConditionalGenerationForJanusVLN"
PATCH = 14
"""Side of a patch in pixels, in Qwen's tower and in VGGT alike."""
MERGE = 2
"""Patches along one side of what becomes one embedding."""
BLOCK = PATCH * MERGE
"""Pixels along one side of what becomes one embedding."""
WIDTH = 644
"""Pixels to which frames are scaled where a config says nothing else, 23 embeddings across."""
HISTORY = 8
"""Earlier frames that a question shows where a config says nothing else."""


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
class GeometrySizes:
    """Sizes of the VGGT aggregator, of its DINO part and of the two heads that lie unused in checkpoints.

    `position_side` is the side of DINO's position table in patches. `head_width` and `head_channels` are those of
    the heads' convolutions.
    """

    width: int
    intermediate_size: int
    depth: int
    heads: int
    registers: int
    dino_intermediate_size: int
    dino_depth: int
    dino_registers: int
    position_side: int
    head_width: int
    head_channels: tuple[int, ...]


@dataclass(frozen=True)
class JanusVLNConfig:
    """Sizes of one checkpoint. `geometry_weight` is the factor lambda of geometry when it is added to images.

    `image_width`, pixels to which frames are scaled, and `num_history`, earlier frames of a question, are fixed in
    the published code and said by checkpoints that were trained with others.

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
    merger_hidden_size: int
    geometry_weight: float
    image_width: int
    num_history: int
    dtype: torch.dtype
    raw: Mapping[str, Any]

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def shown(self, width: int | None = None, history: int | None = None) -> JanusVLNConfig:
        """The same for images of another width and another number of earlier frames; None leaves them.

        Raises UsageError for a width that is no whole number of embeddings.
        """
        changed: dict[str, Any] = {}
        if width is not None:
            changed["image_width"] = image_width(width, f"--image-width {width}")
        if history is not None:
            changed["num_history"] = history
        return replace(self, **changed, raw=dict(self.raw) | changed) if changed else self


def read_config(folder: Path) -> JanusVLNConfig:
    """Read config.json of a checkpoint folder.

    Raises UsageError for a folder that holds no JanusVLN checkpoint and for the first field that does not fit.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise UsageError(f"{folder} is not a checkpoint: expected a folder with config.json in it")
    return parse_config(read_json(path), str(path))


def parse_config(raw: Mapping[str, Any], where: str) -> JanusVLNConfig:
    """The same from a config.json's content; `where` is its name in messages."""
    fields = Fields(raw, where)
    if raw.get("model_type") != MODEL_TYPE:
        raise fields.error("model_type", f'"{MODEL_TYPE}" (a JanusVLN checkpoint)')
    if raw.get("architectures") != [ARCHITECTURE]:
        raise fields.error("architectures", f'["{ARCHITECTURE}"] (a JanusVLN checkpoint)')
    fields.choice("hidden_act", "silu", default="silu")
    fields.choice("use_sliding_window", False, default=False)
    fields.choice("reference_frame", "first", default="first")
    fields.choice("add_ground_classifier", False, default=False)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads")
    if hidden % (2 * heads):
        raise fields.error("hidden_size", f"an even multiple of num_attention_heads ({heads})")
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    return JanusVLNConfig(
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
        merger_hidden_size=fields.integer("vggt_merger_hidden_dim", default=4096),
        geometry_weight=fields.number("lam"),
        image_width=image_width(fields.integer("image_width", default=WIDTH), f"{where}: image_width"),
        num_history=fields.integer("num_history", default=HISTORY),
        dtype=DTYPES[fields.choice("torch_dtype", *DTYPES, default=raw.get("dtype", "bfloat16"))],
        raw=dict(raw),
    )


def image_width(width: int, where: str) -> int:
    """The width itself. Raises UsageError, which begins with `where`, unless it is whole embeddings."""
    if width < BLOCK or width % BLOCK:
        raise UsageError(f"{where}: expected a multiple of {BLOCK} pixels, such as 644, 532, 448 or 392")
    return width


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


def geometry_sizes(shapes: Mapping[str, tuple[int, ...]], where: str) -> GeometrySizes:
    """Sizes of the aggregator from the shapes of a checkpoint's tensors, by name.

    Nothing is allocated for them: whether every tensor fits the sizes is checked afterwards, name by name. Raises
    UsageError for the first tensor that the sizes need and that is absent or of the wrong rank; `where` is the
    checkpoint's folder.
    """

    def shape(name: str, rank: int) -> tuple[int, ...]:
        full = f"vggt.{name}"
        if full not in shapes:
            raise UsageError(f"{where}: the weights are not those of JanusVLN: 1 missing: {full}")
        if len(shapes[full]) != rank or 0 in shapes[full]:
            raise UsageError(f"{where}: {full} has shape {list(shapes[full])}: expected {rank} sizes above 0")
        return shapes[full]

    width, head = (
        shape("aggregator.camera_token", 4)[3],
        shape("aggregator.frame_blocks.0.attn.q_norm.weight", 1)[0],
    )
    positions = shape("aggregator.patch_embed.pos_embed", 3)[1] - 1
    side = round(positions**0.5)
    depth = _count(shapes, "vggt.aggregator.frame_blocks.")
    if depth < 2:
        raise UsageError(
            f"{where}: vggt.aggregator has {depth} frame blocks: expected 2 or more (the last is not used)"
        )
    if width % head or head % 4:
        raise UsageError(f"{where}: vggt.aggregator: heads of {head} do not fit a width of {width}")
    if side**2 != positions or side < 1:
        raise UsageError(f"{where}: vggt.aggregator.patch_embed.pos_embed: expected 1 + a square of entries")
    return GeometrySizes(
        width=width,
        intermediate_size=shape("aggregator.frame_blocks.0.mlp.fc1.weight", 2)[0],
        depth=depth,
        heads=width // head,
        registers=shape("aggregator.register_token", 4)[2],
        dino_intermediate_size=shape("aggregator.patch_embed.blocks.0.mlp.fc1.weight", 2)[0],
        dino_depth=_count(shapes, "vggt.aggregator.patch_embed.blocks."),
        dino_registers=shape("aggregator.patch_embed.register_tokens", 3)[1],
        position_side=side,
        head_width=shape("depth_head.scratch.layer1_rn.weight", 4)[0],
        head_channels=tuple(shape(f"depth_head.projects.{i}.weight", 4)[0] for i in range(4)),
    )


def _count(shapes: Mapping[str, tuple[int, ...]], prefix: str) -> int:
    """How many different numbers follow a prefix in the names."""
    return len({name[len(prefix) :].partition(".")[0] for name in shapes if name.startswith(prefix)})
