"""The Qwen2.5-VL network (arXiv 2502.13923): vision tower, merger, language model. Parameter names are those of
published checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.janusvln.image import grid_of
from agents.janusvln.network.language import LanguageModel, expand
from agents.janusvln.network.model import JanusVLN, Output, spread_labels
from agents.janusvln.network.vision import VisionTower
from agents.qwen_vl.config import QwenVLConfig

Part = Literal["vision", "merger", "language_model"]


def part_of(name: str) -> Part:
    """Which part a parameter belongs to."""
    if name.startswith("visual."):
        return "merger" if name.startswith("visual.merger.") else "vision"
    return "language_model"


class QwenVL(JanusVLN):
    """JanusVLN without its geometry: tower, merger and language model are the same code.

    `eager` computes the language model's attention without a fused kernel.
    """

    def __init__(self, config: QwenVLConfig, eager: bool = False) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.visual = VisionTower(config.vision, config.hidden_size)
        self.model = LanguageModel(config, eager)
        if not config.tied:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def images(self, frames: Tensor) -> Tensor:
        """Embeddings (N * embeddings, hidden) of frames of one size, uint8 (N, height, width, 3)."""
        found: Tensor = self.visual.merger(self.tower_features(frames))
        return found.flatten(0, 1)

    def forward(  # type: ignore[override]  # images without geometry
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
