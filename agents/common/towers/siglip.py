"""SigLIP: the sizes of its vision tower as a config.json gives them, and frames as it takes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from agents.common.checkpoints.files import CONFIG, MAX_LAYERS, MAX_PIXELS, Fields, read_json
from vlnbench.errors import UsageError


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


_LEVELS = ((np.arange(256) * (1 / 255)).astype(np.float32) - np.float32(0.5)) / np.float32(0.5)
"""Network input for each 8-bit value, rounded as SigLIP's image processor does: scaled, then mean 0.5, std 0.5."""


def resize(frame: NDArray[np.uint8] | Image.Image, size: int) -> NDArray[np.uint8]:
    """An RGB frame as uint8 (size, size, 3), bicubic, aspect ratio not kept."""
    image = frame if isinstance(frame, Image.Image) else Image.fromarray(frame)
    image = image if image.mode == "RGB" else image.convert("RGB")  # which would copy it
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC))


def network_input(frames: Sequence[NDArray[np.uint8]] | NDArray[np.uint8]) -> torch.Tensor:
    """Resized frames as one float32 tensor (len(frames), 3, size, size) with values in [-1, 1]."""
    planes = np.asarray(frames).transpose(0, 3, 1, 2)
    return torch.from_numpy(_LEVELS[np.ascontiguousarray(planes)])  # bytes are moved faster than numbers


def used_blocks(tower: nn.Module, config: VisionGeometry) -> list[nn.Module]:
    """The blocks whose output is looked at: all but the last of those that are published, if that is there."""
    encoder: Any = tower.get_submodule("encoder")
    return list(encoder.layers)[: config.num_hidden_layers - 1]


def patch_features(tower: nn.Module, pixels: Tensor, whole: VisionGeometry | None = None) -> Tensor:
    """Patch features (N, patches, width) that a tower has of images (N, 3, S, S), on its device, in its dtype.

    whole: sizes of a tower that has the published last block too, which is left out.
    """
    trained = any(parameter.requires_grad for parameter in tower.parameters())
    # Checkpointing in transformers makes embeddings require gradients, and a backward pass of a frozen tower too.
    with torch.set_grad_enabled(trained and torch.is_grad_enabled()):
        features: Tensor = tower.get_submodule("embeddings")(pixels)
        if whole is None:
            return tower.get_submodule("encoder")(inputs_embeds=features).last_hidden_state  # type: ignore[no-any-return]
        for block in used_blocks(tower, whole):
            found = block(features, None)
            features = found[0] if isinstance(found, tuple) else found  # transformers 4 gives attention, too
    return features


def interpolated(table: Tensor, old: int, new: int) -> nn.Embedding:
    """Positions (new ** 2, width) of patches by those of another grid, (old ** 2, width), as SigLIP does."""
    planes = table.float().T.reshape(1, -1, old, old)
    planes = functional.interpolate(planes, size=(new, new), mode="bicubic", align_corners=False)
    rows = planes[0].flatten(1).T.to(table.dtype).contiguous()
    return nn.Embedding(new**2, table.shape[1], _weight=rows)
