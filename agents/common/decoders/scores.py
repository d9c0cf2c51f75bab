"""What a network answers, token by token, to windows in which the answers before are the expert's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from agents.common.decoders.turns import Network
from vlnbench.interfaces import Action


@torch.inference_mode()
def score_windows(
    model: Network, samples: Sequence[Any], actions: dict[int, Action]
) -> list[list[tuple[Action | None, float]]]:
    """For every label that is an action, in order: the likeliest answer, None if that is none, and the loss.

    samples: with `input_ids`, `labels` and images (k, 3, S, S), as training has them. actions: by their ids.
    """
    pixels = torch.cat([sample.images for sample in samples]).to(model.device, model.dtype)
    features = model.project(model.patch_features(pixels))
    pairs = [model.expand(sample.input_ids, len(sample.images), sample.labels) for sample in samples]
    # No attention mask: padding is on the right, where causal attention never looks.
    expanded = nn.utils.rnn.pad_sequence([ids for ids, _ in pairs], batch_first=True)
    hidden = model.model(inputs_embeds=model.embed(expanded, features), use_cache=False).last_hidden_state
    known = torch.tensor(sorted(actions))
    found = []
    for row, (_, targets) in zip(hidden, pairs, strict=True):
        asked = torch.isin(targets[1:], known)
        scores = model.lm_head(row[: len(targets) - 1][asked.to(row.device)]).float()
        losses = functional.cross_entropy(scores, targets[1:][asked].to(row.device), reduction="none")
        likeliest = [actions.get(id_) for id_ in scores.argmax(dim=-1).tolist()]
        found.append(list(zip(likeliest, losses.tolist(), strict=True)))
    return found
