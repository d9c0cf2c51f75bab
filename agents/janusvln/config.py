"""What a JanusVLN checkpoint's config.json says, checked field by field, and what the shapes of its tensors say.

Format: the `qwen2_5_vl` config of transformers 4.50 with JanusVLN's additions (github.com/MIV-XJTU/JanusVLN). The
sizes of the VGGT aggregator are nowhere in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agents.common.checkpoints.files import Fields
from agents.common.qwen2_5_vl.config import BLOCK, QwenConfig, config_file, qwen_config
from vlnbench.errors import UsageError

ARCHITECTURE = "Qwen2_5_VLForConditionalGenerationForJanusVLN"
WIDTH = 644
"""Pixels to which frames are scaled where a config says nothing else, 23 embeddings across."""
HISTORY = 8
"""Earlier frames that a question shows where a config says nothing else."""


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
class JanusVLNConfig(QwenConfig):
    """Sizes of one checkpoint. `geometry_weight` is the factor lambda of geometry when it is added to images.

    `image_width`, pixels to which frames are scaled, and `num_history`, earlier frames of a question, are fixed in
    the published code and said by checkpoints that were trained with others.
    """

    merger_hidden_size: int
    geometry_weight: float
    image_width: int
    num_history: int

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
    return parse_config(*config_file(folder))


def parse_config(raw: Mapping[str, Any], where: str) -> JanusVLNConfig:
    """The same from a config.json's content; `where` is its name in messages."""
    qwen = qwen_config(raw, where, ARCHITECTURE, "JanusVLN")
    fields = Fields(raw, where)
    fields.choice("reference_frame", "first", default="first")
    fields.choice("add_ground_classifier", False, default=False)
    return JanusVLNConfig(
        **vars(qwen),
        merger_hidden_size=fields.integer("vggt_merger_hidden_dim", default=4096),
        geometry_weight=fields.number("lam"),
        image_width=image_width(fields.integer("image_width", default=WIDTH), f"{where}: image_width"),
        num_history=fields.integer("num_history", default=HISTORY),
    )


def image_width(width: int, where: str) -> int:
    """The width itself. Raises UsageError, which begins with `where`, unless it is whole embeddings."""
    if width < BLOCK or width % BLOCK:
        raise UsageError(f"{where}: expected a multiple of {BLOCK} pixels, such as 644, 532, 448 or 392")
    return width


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
