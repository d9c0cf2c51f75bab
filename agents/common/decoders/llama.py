"""Llama's blocks as transformers has them, of networks that put what they see in the place of words."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaModel

from agents.common.decoders.qwen2 import language_sizes
from agents.common.decoders.sizes import WindowedSizes


class LlamaBlocks(LlamaModel):  # type: ignore[no-untyped-call]  # a class hook of transformers
    """Embeddings, blocks and last norm, under transformers' names; `qwen2.read` reads with them, too."""

    def __init__(self, config: WindowedSizes, attn: str) -> None:
        super().__init__(LlamaConfig(**language_sizes(config, attn), attention_bias=False))

    def fill_buffers(self, device: torch.device | str) -> None:
        """Compute the table of rotations, which no checkpoint holds."""
        with torch.device(device):
            self.rotary_emb = type(self.rotary_emb)(config=self.config)
