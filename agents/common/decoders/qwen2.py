"""The modules of transformers that StreamVLN consists of, under the names of the published checkpoints.

Importing transformers' models takes seconds: whoever runs a small network by `fast` does without.
"""

from __future__ import annotations

import inspect
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, Qwen2Config, Qwen2Model, SiglipVisionConfig, SiglipVisionModel

from agents.common.decoders.cache import CacheColumns, CacheView
from agents.common.decoders.sizes import WindowedSizes
from agents.common.packing.skeleton import add_vision

_CACHE = "cache" if "cache" in inspect.signature(Qwen2Model.forward).parameters else "past_key_values"
"""What transformers calls the argument with earlier keys and values: renamed within 5, as seen in 5.24."""


def language_sizes(config: WindowedSizes, attn: str) -> dict[str, Any]:
    """The language model's part of a config, in the fields that transformers has for Qwen2 and Llama alike."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_norm_eps,
        "attention_dropout": config.attention_dropout,
        "tie_word_embeddings": False,
        "attn_implementation": attn,
    }


def vision_config(config: WindowedSizes, attn: str) -> SiglipVisionConfig:
    """The vision tower's part of a config: one block less than published and no pooling head."""
    sizes: dict[str, Any] = asdict(config.vision) | {
        "num_hidden_layers": config.vision.num_hidden_layers - 1,
        "vision_use_head": False,
        "attn_implementation": attn,
    }
    return SiglipVisionConfig(**sizes)


class _InPlace(DynamicCache):
    """A `CacheView` as transformers' cache."""

    def __init__(self, view: CacheView) -> None:
        super().__init__()
        self._view = view

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return self._view.put(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._view.length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self._view.length

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        return self._view.length + int(query_length), 0


class _InColumns(DynamicCache):
    """`CacheColumns` as transformers' cache."""

    def __init__(self, into: CacheColumns) -> None:
        super().__init__()
        self._into = into

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return self._into.put(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._into.buffer.shape[-2]


class Backbone(Qwen2Model):  # type: ignore[no-untyped-call]  # a class hook of transformers
    """The language model's blocks with the vision parts as children, where published checkpoints have them."""

    def __init__(self, config: WindowedSizes, attn: str) -> None:
        super().__init__(Qwen2Config(**language_sizes(config, attn), use_sliding_window=False))
        self.vision_attention = "eager" if attn == "eager" else "sdpa"
        tower = SiglipVisionModel(vision_config(config, self.vision_attention))
        add_vision(self, config, getattr(tower, "vision_model", tower))  # transformers 4 has one more level

    def fill_buffers(self, device: torch.device | str, patches: int) -> None:
        """Compute the tables that no checkpoint holds: rotations, and numbers of an image's patches."""
        with torch.device(device):
            self.rotary_emb = type(self.rotary_emb)(config=self.config)
        embeddings = self.get_submodule("vision_tower.vision_tower.vision_model.embeddings")
        embeddings.register_buffer("position_ids", torch.arange(patches, device=device)[None], persistent=False)


def read_in_columns(blocks: Any, embeddings: Tensor, positions: Tensor, into: CacheColumns) -> Tensor:
    """As `read`, of a whole buffer."""
    found: Tensor = blocks(
        inputs_embeds=embeddings,
        attention_mask=into.seen,
        position_ids=positions,
        use_cache=True,
        **{_CACHE: _InColumns(into)},
    ).last_hidden_state
    return found


def read(blocks: Any, embeddings: Tensor, positions: Tensor, view: CacheView, mask: Tensor | None) -> Tensor:
    """Hidden states (rows, length, hidden) of new tokens.

    blocks: a `Backbone`, as it is or compiled. embeddings: (rows, length, hidden). positions: (rows, length), on
    the same device. mask: see `TurnCache.open`.
    """
    found: Tensor = blocks(
        inputs_embeds=embeddings,
        attention_mask=mask,
        position_ids=positions,
        use_cache=True,
        **{_CACHE: _InPlace(view)},
    ).last_hidden_state
    return found
