"""What the memory of acting turn by turn takes: an agent's caches, and its largest passes."""

from __future__ import annotations

import torch
from torch import Tensor

from agents.common.decoders.cache import stepped, turn_columns
from agents.common.decoders.turns import IMAGE_BATCH, Network
from agents.common.decoders.windows import PROMPT_TOKENS, TURN_TOKENS, window_tokens
from vlnbench.training.family.plans import Acting

META = torch.device("meta")
"""Networks are planned in shapes, as on a GPU."""
ANSWER_TOKENS = 8
"""Tokens of a usual answer: one per action, and the ends."""


def acting(
    network: Network, episodes: int, max_new_tokens: int, keeps: bool = True, kept: int | None = None
) -> Acting:
    """What so many episodes in a pass take: the last turn of a window, and the one that opens the next with its
    memory frames. keeps: see `Decoder`. kept: episodes under way, whose windows are kept; default those."""
    config, count = network.config, episodes
    tokens = window_tokens(config, config.num_future_steps, ANSWER_TOKENS)
    longest = window_tokens(config, 1, max_new_tokens)
    entries = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    column = entries * network.dtype.itemsize
    most = column * (stepped(longest, META) + turn_columns(longest, META)) * count
    size = config.vision.image_size
    images = torch.zeros(count * (config.num_history + 1), 3, size, size, device="meta")
    opening = PROMPT_TOKENS + TURN_TOKENS + (config.num_history + 1) * config.image_tokens
    embeddings = torch.zeros(count, opening, config.hidden_size, dtype=network.dtype, device="meta")
    name, beside = f"keys and values of {tokens:,} tokens per episode", column * turn_columns(tokens, META) * count
    caches = {name: beside}
    if keeps:
        each = column * stepped(tokens, META)
        caches = {name: each * (kept or count), "the same side by side during a turn": beside}
    return Acting(
        caches=caches,
        passes={
            "looking at a window's frames": lambda: _look(network, images),
            "reading the opening of a window": lambda: _read(network, embeddings),
        },
        notes=[
            f"a window with {max_new_tokens} tokens of answer at every step would have {longest:,}: "
            f"{most / 1e9:.1f} GB of keys and values"
        ],
    )


def _look(network: Network, images: Tensor) -> Tensor:
    return torch.cat(
        [
            network.project(network.patch_features(part.to(network.dtype)))
            for part in torch.split(images, IMAGE_BATCH)
        ]
    )


def _read(network: Network, embeddings: Tensor) -> Tensor:
    hidden: Tensor = network.model(inputs_embeds=embeddings, use_cache=False).last_hidden_state
    scores: Tensor = network.lm_head(hidden[:, -1]).float()
    return scores
