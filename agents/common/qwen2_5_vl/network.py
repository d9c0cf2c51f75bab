"""What every network built on Qwen2.5-VL does: images and text to embeddings, embeddings to scores and a loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.common.decoders.placeholders import IGNORED
from agents.common.language.network import Output
from agents.common.qwen2_5_vl.config import QwenConfig
from agents.common.qwen2_5_vl.image import grid_of, patches
from agents.common.qwen2_5_vl.language import LanguageModel
from agents.common.qwen2_5_vl.vision import VisionTower
from agents.common.upload import upload

NEVER = -1e9
"""A score that no softmax gives a chance; finite, so that a chance of 0 times its logarithm is 0 and not NaN."""


class QwenNetwork(nn.Module):
    """Vision tower, merger and language model. Parameter names are those of published checkpoints.

    `eager` computes the language model's attention without a fused kernel. Parameters are created in torch's
    default dtype on its default device, in the order of a published file: whoever puts something between tower and
    language model does so between the two lines of this constructor.
    """

    config: QwenConfig

    def __init__(self, config: QwenConfig, eager: bool = False) -> None:
        super().__init__()
        self.config = config
        self.visual = VisionTower(config.vision, config.hidden_size)
        self.add_language(eager)

    def add_language(self, eager: bool) -> None:
        """The language model and, where it is not tied to the embeddings, the output layer."""
        self.model = LanguageModel(self.config, eager)
        if not self.config.tied:
            self.lm_head = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)

    @property
    def attention(self) -> str:
        """The kind of the language model's attention."""
        return "eager" if self.model.eager else "sdpa"

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
                patches(upload(frames, self.device)).to(self.dtype), grid_of(*frames.shape[1:3])
            )

    def embed(self, expanded: Tensor, fused: Tensor) -> Tensor:
        """Input embeddings (..., length, hidden) of expanded ids; `fused` (embeddings, hidden) in their order."""
        expanded = upload(expanded, self.device)
        text: Tensor = self.model.embed_tokens(expanded)
        places = (expanded == self.config.image_token)[..., None].expand_as(text)
        return text.masked_scatter(places, fused.to(text.dtype))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the vocabulary (..., vocabulary)."""
        scores: Tensor = self.model.embed_tokens(hidden) if self.config.tied else self.lm_head(hidden)
        return scores

    def hidden(self, rows: Sequence[tuple[Tensor, Tensor]], fused: Tensor) -> Tensor:
        """Hidden states (rows, length, hidden) of expanded ids with their positions, padded on the right.

        `fused`: embeddings of all images of all rows, in order.
        """
        ids = nn.utils.rnn.pad_sequence([row for row, _ in rows], batch_first=True)
        positions = nn.utils.rnn.pad_sequence([row.T for _, row in rows], batch_first=True).permute(2, 0, 1)
        out: Tensor = self.model(self.embed(ids, fused), positions.to(self.device))
        return out

    def output(
        self,
        hidden: Tensor,
        rows: Sequence[tuple[Tensor, Tensor]],
        input_ids: Sequence[Sequence[int]],
        labels: Sequence[Sequence[int]] | None,
        want_logits: bool,
        at_labels: bool,
    ) -> Output:
        """What a forward pass gives. labels: one per id; the loss is the mean float32 cross entropy of each next
        one that is not ignored.

        Without `want_logits` (labels needed) only supervised positions meet the vocabulary. `at_labels`: there is
        no loss, and logits are float32 (labels, vocabulary), of answers that were drawn.
        """
        if labels is None:
            return Output(self.logits(hidden), None)
        token = self.config.image_token
        spread = [
            spread_labels(own, ids, row, token) for own, ids, (row, _) in zip(labels, input_ids, rows, strict=True)
        ]
        scores, targets = self.supervised(hidden, spread)
        if at_labels:
            return Output(undrawn(scores, token), None)
        loss = functional.cross_entropy(scores, targets)
        return Output(self.logits(hidden) if want_logits else None, loss)

    def supervised(self, hidden: Tensor, labels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Scores (n, vocabulary), float32, of all positions of a batch before a label that counts, and the labels.

        hidden: (rows, length, hidden). labels: of every row's expanded ids, which may be fewer.
        """
        padded = nn.utils.rnn.pad_sequence(list(labels), batch_first=True, padding_value=IGNORED)
        targets = padded[:, 1:].to(self.device)
        chosen = targets != IGNORED
        return self.logits(hidden[:, :-1][chosen]).float(), targets[chosen]


def undrawn(logits: Tensor, token: int) -> Tensor:
    """Scores (..., vocabulary) with which `token` is never drawn.

    An answer that is drawn becomes part of a sample, and there the image token would ask for a frame that nobody
    gave. Drawing and learning from what was drawn must both leave it out, or their log-probabilities would differ.
    """
    return logits.index_fill(-1, upload(torch.tensor([token]), logits.device), NEVER)


def spread_labels(labels: Sequence[int], ids: Sequence[int], expanded: Tensor, image_token: int) -> Tensor:
    """Labels of ids as labels of expanded ids; those of images are ignored."""
    targets = torch.full_like(expanded, IGNORED)
    targets[expanded != image_token] = torch.tensor(
        [label for label, token in zip(labels, ids, strict=True) if token != image_token]
    )
    return targets
