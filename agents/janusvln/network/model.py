"""The JanusVLN network: Qwen2.5-VL whose images carry the geometry that VGGT sees in them (arXiv 2509.22548).

Parameter names are those of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.janusvln.config import MERGE, GeometrySizes, JanusVLNConfig
from agents.janusvln.image import Grid, grid_of, patches, scaled
from agents.janusvln.network.geometry import Aggregator, FrameCache
from agents.janusvln.network.language import KeyValues, LanguageModel, expand
from agents.janusvln.network.layers import PatchMerger
from agents.janusvln.network.stored import Stored, head_shapes
from agents.janusvln.network.vision import VisionTower

IGNORED = -100
"""The label that takes no part in the loss."""

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


class Output(NamedTuple):
    """Logits (batch, length, vocabulary), None where not wanted, and the mean loss where labels were given."""

    logits: Tensor | None
    loss: Tensor | None


class Geometry(nn.Module):
    """VGGT as far as JanusVLN has it: the aggregator, and two heads that are kept for the file's sake."""

    def __init__(self, sizes: GeometrySizes) -> None:
        super().__init__()
        self.aggregator = Aggregator(sizes)
        self.depth_head = Stored(head_shapes(sizes, out=2))
        self.point_head = Stored(head_shapes(sizes, out=4))


class JanusVLN(nn.Module):
    """Both encoders, both mergers and the language model of one checkpoint.

    `eager` computes the language model's attention without a fused kernel. Parameters are created in torch's
    default dtype on its default device. VGGT never trains.
    """

    def __init__(self, config: JanusVLNConfig, sizes: GeometrySizes, eager: bool = False) -> None:
        super().__init__()
        self.config = config
        self.visual = VisionTower(config.vision, config.hidden_size)
        self.vggt = Geometry(sizes).requires_grad_(False)
        self.merger = PatchMerger(2 * sizes.width, config.merger_hidden_size, config.hidden_size)
        self.model = LanguageModel(config, eager)
        if not config.tied:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def device(self) -> torch.device:
        return self.model.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.norm.weight.dtype

    def enable_checkpointing(self) -> None:
        """Recompute activations of both transformers' blocks in the backward pass. Acts in training mode only."""
        self.visual.checkpointing = self.model.checkpointing = True

    def tower_features(self, frames: Tensor) -> Tensor:
        """What Qwen's tower sees in resized frames, uint8 (N, height, width, 3): (N, patches, width)."""
        trained = any(parameter.requires_grad for parameter in self.visual.blocks.parameters())
        with torch.set_grad_enabled(trained and torch.is_grad_enabled()):
            return self.visual.features(
                patches(frames.to(self.device)).to(self.dtype), grid_of(*frames.shape[1:3])
            )

    def geometry_features(self, frames: Tensor, caches: Sequence[FrameCache]) -> Tensor:
        """What VGGT sees in the next frame of every cache, uint8 (N, height, width, 3).

        Returns (N, 4 * embeddings, 2 * width): only the patches that have an embedding, the four of an embedding
        one after the other. In half precision VGGT runs under autocast, as in the original.
        """
        half = self.dtype != torch.float32
        with (
            torch.no_grad(),
            torch.autocast(self.device.type, self.dtype if half else torch.bfloat16, enabled=half),
        ):
            found: Tensor = self.vggt.aggregator(scaled(frames.to(self.device)), caches).to(self.dtype)
        rows, columns = grid_of(*frames.shape[1:3])
        found = found.reshape(len(frames), -1, columns * MERGE, found.shape[2])[:, : rows * MERGE]
        found = found.reshape(len(frames), rows, MERGE, columns, MERGE, -1).transpose(2, 3)
        return found.reshape(len(frames), rows * columns * MERGE**2, -1)

    def final_geometry(self, frames: Tensor) -> Tensor:
        """Geometry features (4 * embeddings, 2 width) of the last of a sample's frames after all the others."""
        cache = FrameCache(recent=None)
        return [self.geometry_features(frame[None], [cache]) for frame in frames][-1][0]

    def fuse(self, images: Tensor, geometry: Tensor) -> Tensor:
        """Embeddings of a sample's images (k, embeddings, hidden), each with the geometry of its current frame
        (embeddings, hidden) added: k is the sample's own, whatever else is in the batch."""
        return images + self.config.geometry_weight * geometry

    def embed(self, expanded: Tensor, fused: Tensor) -> Tensor:
        """Input embeddings (..., length, hidden) of expanded ids; `fused` (embeddings, hidden) in their order."""
        expanded = expanded.to(self.device)
        text: Tensor = self.model.embed_tokens(expanded)
        places = (expanded == self.config.image_token)[..., None].expand_as(text)
        return text.masked_scatter(places, fused.to(text.dtype))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the vocabulary (..., vocabulary)."""
        weight = self.model.embed_tokens.weight if self.config.tied else self.lm_head.weight
        return functional.linear(hidden, weight)

    def hidden(
        self, rows: Sequence[tuple[Tensor, Tensor]], fused: Tensor, past: KeyValues | None = None
    ) -> Tensor:
        """Hidden states (rows, length, hidden) of expanded ids with their positions, padded on the right.

        `fused`: embeddings of all images of all rows, in order.
        """
        ids = nn.utils.rnn.pad_sequence([row for row, _ in rows], batch_first=True)
        positions = nn.utils.rnn.pad_sequence([row.T for _, row in rows], batch_first=True).permute(2, 0, 1)
        out: Tensor = self.model(self.embed(ids, fused), positions.to(self.device), past)
        return out

    def forward(
        self,
        input_ids: Sequence[Sequence[int]],
        frames: Sequence[Tensor],
        labels: Sequence[Sequence[int]] | None = None,
        *,
        want_logits: bool = True,
    ) -> Output:
        """One training step's forward pass.

        `input_ids` hold one image token per frame, `labels` one label per id; `frames[i]` is uint8 (k, height,
        width, 3), the current frame last. VGGT sees a sample's frames one after the other and forgets none.
        Samples are padded on the right. The loss is the mean float32 cross entropy of each next label that is not
        ignored. Without `want_logits` (labels needed) only supervised positions meet the vocabulary.
        """
        grids = [grid_of(*seen.shape[1:3]) for seen in frames]
        towers = [self.tower_features(seen) for seen in frames]
        geometries = [self.final_geometry(seen) for seen in frames]
        return self.forward_features(input_ids, grids, towers, geometries, labels, want_logits=want_logits)

    def forward_features(
        self,
        input_ids: Sequence[Sequence[int]],
        grids: Sequence[Grid],
        towers: Sequence[Tensor],
        geometries: Sequence[Tensor],
        labels: Sequence[Sequence[int]] | None = None,
        *,
        want_logits: bool = True,
    ) -> Output:
        """The same from what the encoders see, which does not change where they are frozen.

        Per sample: its images' grid, tower features (k, patches, width) and the current frame's geometry features
        (patches, 2 width).
        """
        token = self.config.image_token
        rows = [
            expand(ids, [grid] * len(tower), token)
            for ids, grid, tower in zip(input_ids, grids, towers, strict=True)
        ]
        fused = [
            self.fuse(self.visual.merger(tower), self.merger(geometry[None])[0]).flatten(0, 1)
            for tower, geometry in zip(towers, geometries, strict=True)
        ]
        hidden = self.hidden(rows, torch.cat(fused))
        loss = None
        if labels is not None:
            targets = nn.utils.rnn.pad_sequence(
                [
                    _spread(sample, ids, row, token)
                    for sample, ids, (row, _) in zip(labels, input_ids, rows, strict=True)
                ],
                batch_first=True,
                padding_value=IGNORED,
            )[:, 1:].to(self.device)
            supervised = targets != IGNORED
            loss = functional.cross_entropy(self.logits(hidden[:, :-1][supervised]).float(), targets[supervised])
        return Output(self.logits(hidden) if want_logits else None, loss)


def _spread(labels: Sequence[int], ids: Sequence[int], expanded: Tensor, image_token: int) -> Tensor:
    """Labels of ids as labels of expanded ids; those of images are ignored."""
    targets = torch.full_like(expanded, IGNORED)
    targets[expanded != image_token] = torch.tensor(
        [label for label, token in zip(labels, ids, strict=True) if token != image_token]
    )
    return targets
