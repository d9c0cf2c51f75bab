"""Small networks train on a CPU without padding and with few operations: what is put in place for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.common.decoders.placeholders import IGNORED
from agents.common.packing.attention import ImageAttention
from agents.common.packing.blocks import Block, Shape, Work, weights_of
from agents.common.packing.fast import fast_enough
from vlnbench.training.options import TrainOptions

ROWS, IMAGES = 32, 4
"""In bfloat16 windows are filled up to a multiple of so many tokens, batches to one of so many images: code is
made for each shape of a product, which takes several times as long as the product."""
CHARACTERS_PER_IMAGE = 90
"""How many characters of text cost as much as an image with its turn, in a small network."""


class Windows(NamedTuple):
    """A batch of windows whose images are encoded: features (N, image tokens, hidden) of all of them, perhaps of
    more behind these, and how many each window has."""

    input_ids: Sequence[Sequence[int]]
    features: Tensor
    images: Sequence[int]
    labels: Sequence[Sequence[int]]


def pack(network: Any, options: TrainOptions) -> None:
    """Let a network compute its loss by `PackedLoss`, and its patches by `Patches`, where both can be.

    Not where blocks are recomputed, compiled, taken apart by ZeRO 3 or have adapters or dropout in them: those
    work on the modules of transformers.
    """
    if torch.cuda.is_available():  # where the network will be, if it is not there
        return
    untouched = options.gradient_checkpointing or options.compile or options.zero == 3 or options.lora_rank
    if untouched or network.config.attention_dropout or not fast_enough(network):
        return
    network.packed_loss = PackedLoss(network)
    embeddings = network.tower.get_submodule("embeddings")
    embeddings.add_module("patch_embedding", Patches(embeddings.get_submodule("patch_embedding")))
    encoder: Any = network.tower.get_submodule("encoder")
    for layer in encoder.layers:
        layer.self_attn = ImageAttention(layer.self_attn)


class Patches(nn.Module):
    """A convolution whose stride is its kernel's size, as one matrix product; parameters keep their names."""

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias

    def forward(self, pixels: Tensor) -> Tensor:
        """(N, 3, S, S) to (N, width, grid, grid)."""
        side = self.weight.shape[-1]
        count, _, size, _ = pixels.shape
        grid = size // side
        cut = pixels[:, :, : grid * side, : grid * side].reshape(count, -1, grid, side, grid, side)
        rows = cut.permute(0, 2, 4, 1, 3, 5).reshape(count * grid**2, -1)
        seen = functional.linear(rows, self.weight.flatten(1), self.bias)
        return seen.view(count, grid, grid, -1).permute(0, 3, 1, 2)


class PackedLoss:
    """The loss of a network's forward pass up to rounding, over windows that lie one after the other."""

    def __init__(self, network: Any) -> None:
        config = network.config
        shared = config.num_key_value_heads
        self._shape = Shape(shared, config.num_attention_heads // shared, config.head_dim, config.rms_norm_eps)
        self._tables = (torch.empty(0), torch.empty(0))

    def __call__(
        self,
        network: Any,
        windows: Windows,
        weights: Sequence[Sequence[float]] | None,
        total: float | None,
    ) -> Tensor:
        """Mean loss."""
        scores, wanted = self.scores(network, windows)
        if weights is None:
            return functional.cross_entropy(scores, wanted)
        losses = functional.cross_entropy(scores, wanted, reduction="none")
        return weighted_mean(losses, windows.labels, weights, total)

    def scores(self, network: Any, windows: Windows) -> tuple[Tensor, Tensor]:
        """Logits (labels, vocabulary) that each label should follow from, and the labels."""
        each_window = zip(windows.input_ids, windows.images, windows.labels, strict=True)
        each_expanded = (network.expand(*window) for window in each_window)
        expanded, targets = zip(*(map(_filled, each, (0, IGNORED)) for each in each_expanded), strict=True)
        ids = torch.cat(expanded)
        following = torch.cat([functional.pad(each[1:], (0, 1), value=IGNORED) for each in targets])
        chosen = (following != IGNORED).nonzero()[:, 0]
        filled = torch.cat([chosen, (following == IGNORED).nonzero()[: filling(len(chosen), ROWS), 0]])
        lengths = tuple(len(each) for each in expanded)
        text = network.model.embed_tokens(ids.clamp(min=0))
        places = (ids < 0).nonzero()[:, 0]
        features = windows.features.flatten(0, 1)[: len(places)].to(text.dtype)
        state = text.index_copy(0, places, features)
        scores = network.lm_head(self._states(network.model, state, lengths, filled))
        return scores[: len(chosen)].float(), following[chosen]

    def _states(self, backbone: Any, state: Tensor, lengths: tuple[int, ...], chosen: Tensor) -> Tensor:
        """Final states (rows, hidden) of the chosen tokens."""
        positions = torch.cat([torch.arange(length) for length in lengths])
        low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else state.dtype
        cos, sin = (table[positions][:, None].to(low) for table in self._rotary(backbone, max(lengths)))
        work = Work(self._shape, lengths, cos, sin)
        *blocks, last = backbone.layers
        for block in blocks:
            state = Block.apply(state, work, *weights_of(block))  # type: ignore[no-untyped-call]
        ended = replace(work, chosen=chosen)
        state = Block.apply(state, ended, *weights_of(last))  # type: ignore[no-untyped-call]
        return functional.rms_norm(state, state.shape[-1:], backbone.norm.weight, self._shape.eps)

    def _rotary(self, backbone: Any, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines (at least `length`, width / 2)."""
        if len(self._tables[0]) < length:
            with torch.no_grad():
                both = backbone.rotary_emb(backbone.norm.weight, torch.arange(length)[None])
            cos, sin = (each[0, :, : self._shape.width // 2].clone() for each in both)
            self._tables = cos, sin
        return self._tables


def filling(rows: int, multiple: int) -> int:
    """How many rows are missing to a multiple, under autocast; 0 without."""
    return -rows % multiple if torch.is_autocast_enabled("cpu") else 0


def _filled(row: Tensor, value: int) -> Tensor:
    return functional.pad(row, (0, filling(len(row), ROWS)), value=value)


def weighted_mean(
    losses: Tensor, labels: Sequence[Sequence[int]], weights: Sequence[Sequence[float]], total: float | None
) -> Tensor:
    """Mean of the losses of labels that are not ignored; a sequence's first has none, for nothing predicts it."""
    kept = [
        weight
        for row, row_weights in zip(labels, weights, strict=True)
        for label, weight in zip(row[1:], row_weights[1:], strict=True)
        if label != IGNORED
    ]
    factors = torch.tensor(kept, device=losses.device)
    return (losses * factors).sum() / (factors.sum() if total is None else total)


class WindowWeights:
    """A `Weighting` of windows that are packed one behind the other."""

    def cost(self, length: tuple[int, ...]) -> float:
        return 1 + length[0] + length[1] / CHARACTERS_PER_IMAGE

    def masses(self, batch: Mapping[str, Any]) -> list[float]:
        weights = batch.get("weights") or [[1.0] * len(row) for row in batch["labels"]]
        rows = zip(batch["labels"], weights, strict=True)
        return [
            sum(weight for label, weight in zip(row[1:], own[1:], strict=True) if label != IGNORED)
            for row, own in rows
        ]

    def weighed(self, batch: dict[str, Any], factors: Sequence[float]) -> dict[str, Any]:
        weights = batch.get("weights") or [[1.0] * len(row) for row in batch["labels"]]
        scaled = [[weight * factor for weight in row] for row, factor in zip(weights, factors, strict=True)]
        return {**batch, "weights": scaled, "total": 1.0}
