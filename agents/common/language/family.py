"""What families say alike of networks with a language model at `model.layers`, as Qwen's checkpoints name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from agents.common.checkpoints.placement import place
from agents.common.decoders.placeholders import IGNORED
from agents.common.packing.samples import collate
from vlnbench.training.family.checkpoints import Checkpoints, Placement
from vlnbench.training.family.policy import Scored, scored
from vlnbench.training.family.trains import Trains


class LanguageCheckpoints(Checkpoints):
    """Checkpoints of networks whose attention is an option of theirs."""

    def placement(self, options: Any, device: torch.device) -> Placement:
        found = place(str(device), options.dtype, options.attn, torch.bfloat16)
        return Placement(found.dtype, {"attn": found.attn})

    def shapes(self, model: Any) -> Any:
        with torch.device("meta"):
            return type(model)(model.config)


class LanguageTrains(Trains):
    """Training of networks that take a batch's entries by name and return a mean loss."""

    def adapted(self, model: nn.Module) -> list[str]:
        return [
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and name.startswith("model.layers.")
        ]

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return collate(samples)

    def enable_checkpointing(self, model: Any) -> None:
        model.enable_checkpointing()

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        loss: Tensor = model(**batch, want_logits=False).loss
        return loss


class LogProbabilities:
    """Two methods of `GivesLogProbabilities`, for networks whose forward pass takes `at_labels`: logits float32
    (labels, vocabulary) of the labels that are not ignored, in order, in the place of a loss."""

    def log_probabilities(self, model: Any, batch: Mapping[str, Any], temperature: float) -> Scored:
        logits: Tensor = model(**batch, want_logits=False, at_labels=True).logits
        labels = [label for row in batch["labels"] for label in row[1:] if label != IGNORED]
        return scored(logits, torch.tensor(labels, device=logits.device), temperature)

    def cache_bytes(self, config: Any, options: Any) -> int:
        size = 4 if options.dtype == "fp32" else 2
        bytes_: int = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * size
        return bytes_
