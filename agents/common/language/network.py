"""What networks have in common that read embeddings of what they see among those of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.common.decoders.placeholders import IGNORED, expand
from agents.common.upload import upload
from vlnbench.errors import UsageError


class Output(NamedTuple):
    """Logits, by default (batch, length, vocabulary), None where not wanted, and the mean loss where labels were
    given."""

    logits: Tensor | None
    loss: Tensor | None


class SeeingNetwork(nn.Module):
    """A language model, `model` and `lm_head`, and whatever a family sees with; see `decoders.turns.Network`."""

    config: Any
    model: Any
    lm_head: nn.Linear
    patch_features: Any

    def speak(self, config: Any, attn: str) -> None:
        """Take in Llama's blocks and the output layer.

        Raises UsageError where flash_attention_2 is asked for and not installed.
        """
        from agents.common.decoders.llama import LlamaBlocks  # with transformers, which take seconds

        try:
            self.model = LlamaBlocks(config, attn)
        except ImportError as error:
            raise UsageError(f"attention {attn!r} cannot be used here: {str(error).splitlines()[0]}") from None
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the language model's weights."""
        return self.lm_head.weight.dtype

    def expand(
        self, ids: Sequence[int], images: int, labels: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `placeholders.expand`."""
        return expand(ids, images, self.config.image_tokens, labels)

    def embed(self, expanded: Tensor, features: Tensor) -> Tensor:
        """Input embeddings (..., length, hidden) of expanded ids; features (N, ..., hidden) in order."""
        expanded = upload(expanded, self.device)
        text: Tensor = self.model.embed_tokens(expanded.clamp(min=0))
        slots = (expanded < 0)[..., None].expand_as(text)
        return text.masked_scatter(slots, features.to(text.dtype))

    def features_of(self, images: Sequence[Tensor]) -> Tensor:
        """Features of the frames (k, 3, S, S) of all samples, or of features of them, which stay as they are."""
        seen = torch.cat(list(images)).to(self.device, self.dtype)
        found: Tensor = self.patch_features(seen) if seen.ndim == 4 else seen
        return found

    def answered(
        self, rows: Sequence[tuple[Tensor, Tensor]], features: Tensor, at_labels: bool, longest: int | None = None
    ) -> Output:
        """The mean float32 cross entropy of each next label that is not ignored; rows: expanded ids and labels.

        Rows are padded on the right and cut after `longest`. Only what a label looks at meets the vocabulary.
        `at_labels`: there is no loss, but logits float32 (labels, vocabulary).
        """
        pad = nn.utils.rnn.pad_sequence
        # No attention mask: padding is on the right, where causal attention never looks.
        embedded = self.embed(pad([ids for ids, _ in rows], batch_first=True), features)[:, :longest]
        hidden = self.model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        targets = pad([own for _, own in rows], batch_first=True, padding_value=IGNORED)[:, 1:longest]
        supervised = (targets != IGNORED).to(self.device)
        scores = self.lm_head(hidden[:, :-1][supervised]).float()
        if at_labels:
            return Output(scores, None)
        chosen = targets.to(self.device)[supervised]
        # A sample that nothing is learned from, as of frames that are missing, must not divide by nothing.
        return Output(None, functional.cross_entropy(scores, chosen, reduction="sum") / max(len(chosen), 1))


def recompute(module: Any) -> None:
    """Recompute activations of a transformers module's blocks in the backward pass. Acts in training mode only."""
    new = "activation_checkpointing_enable"  # the old name warns, where both are
    found = getattr(module, new, None) or module.gradient_checkpointing_enable
    found({"use_reentrant": False})
