"""The JanusVLN network: Qwen2.5-VL whose images carry the geometry that VGGT sees in them (arXiv 2509.22548).

Parameter names are those of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.common.qwen2_5_vl.config import MERGE
from agents.common.qwen2_5_vl.image import Grid, grid_of, scaled
from agents.common.qwen2_5_vl.language import expand
from agents.common.qwen2_5_vl.layers import PatchMerger
from agents.common.qwen2_5_vl.network import Output, QwenNetwork, spread_labels
from agents.common.qwen2_5_vl.vision import VisionTower
from agents.janusvln.config import GeometrySizes, JanusVLNConfig
from agents.janusvln.network.geometry import Aggregator, FrameCache
from agents.janusvln.network.stored import Stored, head_shapes

Part = Literal["mm_vision", "mm_mlp", "mm_llm", "geometry_merger", "vggt"]


def part_of(name: str) -> Part:
    """Which part a parameter belongs to.

    The first three are what the original training code switches: `tune_mm_vision`, `tune_mm_mlp`, `tune_mm_llm`.
    It trains the geometry merger always, VGGT never, and an untied output head always, though that is of `mm_llm`.
    """
    if name.startswith("vggt."):
        return "vggt"
    if name.startswith("merger."):
        return "geometry_merger"
    if name.startswith("visual."):
        return "mm_mlp" if name.startswith("visual.merger.") else "mm_vision"
    return "mm_llm"


class Geometry(nn.Module):
    """VGGT as far as JanusVLN has it: the aggregator, and two heads that are kept for the file's sake.

    A call is for a whole batch, as training under ZeRO 3 needs it (`Trains.uneven`).
    """

    def __init__(self, sizes: GeometrySizes) -> None:
        super().__init__()
        self.aggregator = Aggregator(sizes)
        self.depth_head = Stored(head_shapes(sizes, out=2))
        self.point_head = Stored(head_shapes(sizes, out=4))

    def forward(self, samples: Sequence[Tensor]) -> list[Tensor]:
        """See `JanusVLN.final_geometries`; the frames are on VGGT's device.

        Samples are seen side by side, one frame of each at a time.
        """
        caches = [FrameCache(recent=None) for _ in samples]
        found: dict[int, Tensor] = {}
        for step in range(max(map(len, samples), default=0)):
            shown = [i for i, frames in enumerate(samples) if step < len(frames)]
            for shape in dict.fromkeys(samples[i].shape[1:] for i in shown):
                alike = [i for i in shown if samples[i].shape[1:] == shape]
                frames = torch.stack([samples[i][step] for i in alike])
                features = geometry_features(self, frames, [caches[i] for i in alike])
                found.update(zip(alike, features, strict=True))  # the last one stays
        return [found[i] for i in range(len(samples))]


class JanusVLN(QwenNetwork):
    """Both encoders, both mergers and the language model of one checkpoint.

    `eager` computes the language model's attention without a fused kernel. Parameters are created in torch's
    default dtype on its default device. VGGT never trains.
    """

    config: JanusVLNConfig

    def __init__(self, config: JanusVLNConfig, sizes: GeometrySizes, eager: bool = False) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.visual = VisionTower(config.vision, config.hidden_size)
        self.vggt = Geometry(sizes).requires_grad_(False)
        self.merger = PatchMerger(2 * sizes.width, config.merger_hidden_size, config.hidden_size)
        self.add_language(eager)

    def geometry_features(self, frames: Tensor, caches: Sequence[FrameCache]) -> Tensor:
        """What VGGT sees in the next frame of every cache, uint8 (N, height, width, 3).

        Returns (N, 4 * embeddings, 2 * width): only the patches that have an embedding, the four of an embedding
        one after the other. In half precision VGGT runs under autocast, as in the original.
        """
        return geometry_features(self.vggt, frames.to(self.device), caches)

    def final_geometries(self, samples: Sequence[Tensor]) -> list[Tensor]:
        """Geometry features (4 * embeddings, 2 width) of every sample's last frame, seen after all its others."""
        found: list[Tensor] = self.vggt([frames.to(self.device) for frames in samples])
        return found

    def fuse(self, images: Tensor, geometry: Tensor) -> Tensor:
        """Embeddings of a sample's images (k, embeddings, hidden), each with the geometry of its current frame
        (embeddings, hidden) added: k is the sample's own, whatever else is in the batch."""
        return images + self.config.geometry_weight * geometry

    def forward(
        self,
        input_ids: Sequence[Sequence[int]],
        frames: Sequence[Tensor] | None,
        labels: Sequence[Sequence[int]] | None = None,
        *,
        grids: Sequence[Grid] | None = None,
        towers: Sequence[Tensor] | None = None,
        geometries: Sequence[Tensor] | None = None,
        want_logits: bool = True,
        at_labels: bool = False,
    ) -> Output:
        """One training step's forward pass.

        `input_ids` hold one image token per frame, `labels` one label per id; `frames[i]` is uint8 (k, height,
        width, 3), the current frame last. VGGT sees a sample's frames one after the other and forgets none.
        Samples are padded on the right. The loss is the mean float32 cross entropy of each next label that is not
        ignored. Without `want_logits` (labels needed) only supervised positions meet the vocabulary. `at_labels`:
        there is no loss, and logits are float32 (labels, vocabulary).

        What an encoder sees may be given, which does not change while it is frozen: `towers`, per sample (k,
        patches, width), and `geometries`, of its current frame, (1, patches, 2 width). With both, `grids` stand
        for the frames, which may be None.
        """
        if grids is None:
            grids = [grid_of(*seen.shape[1:3]) for seen in frames or ()]
        if towers is None:
            towers = together(self.tower_features, frames or ())
        images = together(self.visual.merger, towers)
        if geometries is None:
            geometries = [found[None] for found in self.final_geometries(frames or ())]
        merged = together(self.merger, [seen.to(self.device) for seen in geometries])
        token = self.config.image_token
        rows = [
            expand(ids, [grid] * len(shown), token)
            for ids, grid, shown in zip(input_ids, grids, images, strict=True)
        ]
        fused = [self.fuse(*pair).flatten(0, 1) for pair in zip(images, merged, strict=True)]
        hidden = self.hidden(rows, torch.cat(fused))
        loss = None
        if labels is not None:
            spread = [
                spread_labels(sample, ids, row, token)
                for sample, ids, (row, _) in zip(labels, input_ids, rows, strict=True)
            ]
            scores, targets = self.supervised(hidden, spread)
            if at_labels:
                return Output(scores, None)
            loss = functional.cross_entropy(scores, targets)
        return Output(self.logits(hidden) if want_logits else None, loss)


def together(run: Callable[[Tensor], Tensor], parts: Sequence[Tensor]) -> list[Tensor]:
    """What a function makes of every tensor's rows, those of tensors of one shape at once."""
    found: dict[int, Tensor] = {}
    for shape in dict.fromkeys(part.shape[1:] for part in parts):
        alike = [i for i, part in enumerate(parts) if part.shape[1:] == shape]
        made = run(torch.cat([parts[i] for i in alike]))
        found.update(zip(alike, torch.split(made, [len(parts[i]) for i in alike]), strict=True))
    return [found[i] for i in range(len(parts))]


def geometry_features(vggt: Geometry, frames: Tensor, caches: Sequence[FrameCache]) -> Tensor:
    """See `JanusVLN.geometry_features`; the frames are on VGGT's device."""
    dtype, device = vggt.aggregator.camera_token.dtype, frames.device.type
    half = dtype != torch.float32 and device != "meta"
    with torch.no_grad(), torch.autocast(device if half else "cpu", dtype if half else None, enabled=half):
        found: Tensor = vggt.aggregator(scaled(frames), caches).to(dtype)
    rows, columns = grid_of(*frames.shape[1:3])
    found = found.reshape(len(frames), -1, columns * MERGE, found.shape[2])[:, : rows * MERGE]
    found = found.reshape(len(frames), rows, MERGE, columns, MERGE, -1).transpose(2, 3)
    return found.reshape(len(frames), rows * columns * MERGE**2, -1)
