"""What planning the memory of an acting StreamVLN takes: key-value caches, and the pass that opens a window."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from agents.streamvln.network.decode import IMAGE_BATCH, PROMPT_TOKENS, TURN_TOKENS, window_tokens
from agents.streamvln.network.model import StreamVLN
from agents.streamvln.training.options import StreamVLNInference
from vlnbench.training.family.changes import Change
from vlnbench.training.family.plans import Acting

ANSWER_TOKENS = 8
"""Tokens of a usual answer: one per action, and the ends."""


def acting(network: StreamVLN, options: StreamVLNInference) -> Acting:
    """The last turn of a window, and the one that opens the next with its memory frames."""
    config, count = network.config, options.max_batch
    tokens = window_tokens(config, config.num_future_steps, ANSWER_TOKENS)
    longest = window_tokens(config, 1, options.max_new_tokens)
    entries = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    cache = entries * tokens * network.dtype.itemsize * count
    size = config.vision.image_size
    images = torch.zeros(count * (config.num_history + 1), 3, size, size, device="meta")
    opening = PROMPT_TOKENS + TURN_TOKENS + (config.num_history + 1) * config.image_tokens
    embeddings = torch.zeros(count, opening, config.hidden_size, dtype=network.dtype, device="meta")
    return Acting(
        caches={
            f"keys and values of {tokens:,} tokens per episode": cache,
            "the same side by side during a turn": cache,
        },
        passes={
            "looking at a window's frames": lambda: _look(network, images),
            "reading the opening of a window": lambda: _read(network, embeddings),
        },
        notes=[
            f"a window with {options.max_new_tokens} tokens of answer at every step would have {longest:,}: "
            f"{2 * entries * longest * network.dtype.itemsize * count / 1e9:.1f} GB of keys and values"
        ],
    )


def _look(network: StreamVLN, images: Tensor) -> Tensor:
    return torch.cat([network.encode_images(part.to(network.dtype)) for part in torch.split(images, IMAGE_BATCH)])


def _read(network: StreamVLN, embeddings: Tensor) -> Tensor:
    hidden: Tensor = network.model(inputs_embeds=embeddings, use_cache=False).last_hidden_state
    scores: Tensor = network.lm_head(hidden[:, -1]).float()
    return scores


def acting_changes(options: StreamVLNInference) -> Iterator[Change]:
    """Changes after which other answers are given."""
    if options.image_size is None or options.image_size > 224:
        price = "fewer tokens of an image: other answers, not trained for it"
        yield Change("image", "a checkpoint trained with --image-size 224", 18, (("image_size", 224),), price)
