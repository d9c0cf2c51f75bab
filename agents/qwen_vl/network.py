"""The Qwen2.5-VL network (arXiv 2502.13923): vision tower, merger, language model. Parameter names are those of
published checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from agents.common.qwen2_5_vl.image import grid_of
from agents.common.qwen2_5_vl.language import expand
from agents.common.qwen2_5_vl.network import Output, QwenNetwork, spread_labels

Part = Literal["vision", "merger", "language_model"]


def part_of(name: str) -> Part:
    """Which part a parameter belongs to."""
    if name.startswith("visual."):
        return "merger" if name.startswith("visual.merger.") else "vision"
    return "language_model"


class QwenVL(QwenNetwork):
    """The network as it was published; see `QwenNetwork`."""

    def images(self, frames: Tensor) -> Tensor:
        """Embeddings (N * embeddings, hidden) of frames of one size, uint8 (N, height, width, 3)."""
        found: Tensor = self.visual.merger(self.tower_features(frames))
        return found.flatten(0, 1)

    def forward(
        self,
        input_ids: Sequence[Sequence[int]],
        frames: Sequence[Tensor],
        labels: Sequence[Sequence[int]] | None = None,
        *,
        want_logits: bool = True,
        at_labels: bool = False,
    ) -> Output:
        """One training step's forward pass.

        `input_ids` hold one image token per frame, `labels` one label per id; `frames[i]` is uint8 (k, height,
        width, 3). Samples are padded on the right. The loss is the mean float32 cross entropy of each next label
        that is not ignored. Without `want_logits` (labels needed) only supervised positions meet the vocabulary.
        `at_labels`: there is no loss, and logits are float32 (labels, vocabulary).
        """
        token = self.config.image_token
        grids = [[grid_of(*seen.shape[1:3])] * len(seen) for seen in frames]
        rows = [expand(ids, grid, token) for ids, grid in zip(input_ids, grids, strict=True)]
        hidden = self.hidden(rows, torch.cat([self.images(seen) for seen in frames]))
        if labels is None:
            return Output(self.logits(hidden), None)
        spread = [
            spread_labels(own, ids, row, token) for own, ids, (row, _) in zip(labels, input_ids, rows, strict=True)
        ]
        scores, targets = self.supervised(hidden, spread)
        if at_labels:
            return Output(scores, None)
        loss = functional.cross_entropy(scores, targets)
        return Output(self.logits(hidden) if want_logits else None, loss)
