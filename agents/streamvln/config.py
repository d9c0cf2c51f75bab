"""What a StreamVLN checkpoint's config.json says, checked field by field.

Format: the `llava_qwen` config of LLaVA-NeXT with StreamVLN's additions (github.com/InternRobotics/StreamVLN).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from agents.common.checkpoints.files import CONFIG, DTYPES, MAX_LAYERS, MAX_PIXELS, Fields, read_json
from vlnbench.errors import UsageError

MODEL_TYPE = "llava_qwen"
LANGUAGE_ATTENTION = ("eager", "sdpa", "flash_attention_2")


@dataclass(frozen=True)
class VisionGeometry:
    """Sizes of a SigLIP vision tower as its own repository publishes it, before the last block is taken off."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    image_size: int
    patch_size: int
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6

    @property
    def grid(self) -> int:
        """Patches along one side of an image."""
        return self.image_size // self.patch_size


KNOWN_TOWERS = {"siglip-so400m-patch14-384": VisionGeometry(1152, 4304, 27, 16, 384, 14)}


@dataclass(frozen=True)
class StreamVLNConfig:
    """Sizes and rhythm of one checkpoint. Steps are simulator steps, `num_history` counts memory frames.

    `raw` is config.json as it was read; saving writes it back with what changed.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    attention_dropout: float
    vision: VisionGeometry
    num_history: int
    num_frames: int
    num_future_steps: int
    tunable_parts: tuple[str, ...]
    dtype: torch.dtype
    raw: Mapping[str, Any]

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def image_tokens(self) -> int:
        """Embeddings per image after pooling."""
        return math.ceil(self.vision.grid / 2) ** 2

    def with_image_size(self, size: int) -> StreamVLNConfig:
        """The same for images of `size` pixels. Raises UsageError where not even a patch fits in."""
        if size < self.vision.patch_size:
            raise UsageError(f"--image-size {size}: expected at least a patch, {self.vision.patch_size} pixels")
        return replace(self, vision=replace(self.vision, image_size=size))


def read_config(folder: Path, vision_tower: Path | None = None) -> StreamVLNConfig:
    """Read config.json of a checkpoint folder.

    The tower's sizes come from config.json's own `vision_config` entry, else from the folder `vision_tower` (the
    config.json of a SigLIP repository), else from the tower that `mm_vision_tower` names, if it is a known one.

    Raises UsageError for a folder that holds no StreamVLN checkpoint and for the first field that does not fit.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise UsageError(f"{folder} is not a checkpoint: expected a folder with config.json in it")
    raw = read_json(path)
    return parse_config(raw, str(path), vision_tower)


def parse_config(raw: Mapping[str, Any], where: str, vision_tower: Path | None = None) -> StreamVLNConfig:
    """The same from a config.json's content; `where` is its name in messages."""
    fields = Fields(raw, where)
    if raw.get("model_type") != MODEL_TYPE:
        raise fields.error("model_type", f'"{MODEL_TYPE}" (a StreamVLN checkpoint)')
    fields.choice("mm_projector_type", "mlp2x_gelu")
    fields.choice("mm_spatial_pool_mode", "bilinear")
    fields.choice("hidden_act", "silu", default="silu")
    fields.choice("tie_word_embeddings", False, default=False)
    fields.choice("use_sliding_window", False, default=False)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads")
    if hidden % (2 * heads):
        raise fields.error("hidden_size", f"an even multiple of num_attention_heads ({heads})")
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    dtype = fields.choice("torch_dtype", *DTYPES, default=raw.get("dtype", "bfloat16"))
    parts = fields.text("mm_tunable_parts", default="")
    return StreamVLNConfig(
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=fields.integer("num_hidden_layers", most=MAX_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=fields.integer("vocab_size"),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        rope_theta=fields.number("rope_theta"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        attention_dropout=fields.number("attention_dropout", default=0.0),
        vision=read_vision(fields, vision_tower),
        num_history=fields.integer("num_history", default=8),  # null would make every past frame a memory frame
        num_frames=fields.integer("num_frames", default=32),
        num_future_steps=fields.integer("num_future_steps", default=4),
        tunable_parts=tuple(part.strip() for part in parts.split(",") if part.strip()),
        dtype=DTYPES[dtype],
        raw=dict(raw),
    )


def read_vision(fields: Fields, folder: Path | None) -> VisionGeometry:
    """The tower's sizes from the first source that has them, compared with the projector's input."""
    name = Path(fields.text("mm_vision_tower", default="")).name
    if "vision_config" in fields.values:
        vision = parse_vision(fields)
    elif folder is not None:
        path = folder / CONFIG
        if not path.is_file():
            raise UsageError(f"--vision-tower {folder}: expected a folder with the config.json of a SigLIP model")
        vision = parse_vision(Fields(read_json(path), str(path)))
    elif name in KNOWN_TOWERS:
        vision = KNOWN_TOWERS[name]
    else:
        raise UsageError(
            f"{fields.where}: mm_vision_tower: {json.dumps(name)} is of unknown size: give --vision-tower, a"
            f" folder with that model's config.json (known: {', '.join(KNOWN_TOWERS)})"
        )
    if (width := fields.integer("mm_hidden_size")) != vision.hidden_size:
        raise UsageError(
            f"{fields.where}: mm_hidden_size is {width}, the vision tower ({name or 'unnamed'}) has width"
            f" {vision.hidden_size}: give --vision-tower, a folder with the config.json of the right SigLIP model"
        )
    return vision


def parse_vision(fields: Fields) -> VisionGeometry:
    """Sizes from the `vision_config` entry of a config.json."""
    entry = fields.values.get("vision_config")
    if not isinstance(entry, dict):
        raise fields.error("vision_config", "an object with the sizes of a SigLIP vision tower")
    own = Fields(entry, f"{fields.where}: vision_config")
    own.choice("num_channels", 3, default=3)
    vision = VisionGeometry(
        hidden_size=own.integer("hidden_size"),
        intermediate_size=own.integer("intermediate_size"),
        num_hidden_layers=own.integer("num_hidden_layers", most=MAX_LAYERS),
        num_attention_heads=own.integer("num_attention_heads"),
        image_size=own.integer("image_size", most=MAX_PIXELS),
        patch_size=own.integer("patch_size", most=MAX_PIXELS),
        hidden_act=own.choice("hidden_act", "gelu_pytorch_tanh", "gelu", default="gelu_pytorch_tanh"),
        layer_norm_eps=own.number("layer_norm_eps", default=1e-6),
    )
    if vision.num_hidden_layers < 2:
        raise own.error("num_hidden_layers", "at least 2 (the last block is not used)")
    if vision.hidden_size % vision.num_attention_heads:
        raise own.error("hidden_size", f"a multiple of num_attention_heads ({vision.num_attention_heads})")
    if vision.grid < 1:
        raise own.error("patch_size", f"at most image_size ({vision.image_size})")
    return vision
