"""What planning the memory of StreamVLN takes: sizes, a typical batch, an agent's caches, what could change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from agents.common.decoders.turns import IMAGE_BATCH, PROMPT_TOKENS, TURN_TOKENS, window_tokens
from agents.common.language.planning import operations, part_changes
from agents.streamvln.network import IGNORED, IMAGE, MEMORY, StreamVLN, StreamVLNConfig
from agents.streamvln.options import (
    LANGUAGE_MODEL,
    VISION_TOWER,
    StreamVLNInference,
    StreamVLNPlanning,
    StreamVLNStep,
)
from vlnbench.errors import UsageError
from vlnbench.training.family.changes import Change, Fields
from vlnbench.training.family.plans import Acting, Probe

STREAMVLN_8B: Mapping[str, Any] = {
    "model_type": "llava_qwen",
    "mm_projector_type": "mlp2x_gelu",
    "mm_spatial_pool_mode": "bilinear",
    "mm_vision_tower": "google/siglip-so400m-patch14-384",
    "mm_hidden_size": 1152,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}
"""Sizes of the published StreamVLN (LLaVA-Video-7B-Qwen2 with SigLIP so400m): 8,030,345,248 parameters."""

SIZES: Mapping[str, Mapping[str, Any]] = {"streamvln-8b": STREAMVLN_8B}

SUPERVISED_PER_TURN, SUPERVISED_ONCE = 13, 4
"""Labels of one turn (the answer's block of nine tokens, four marks of the question's) and of the system block."""


def probe(config: StreamVLNConfig, options: StreamVLNPlanning, device: str) -> Probe:
    """Samples of equal length with as many labels as real ones have."""
    supervised = SUPERVISED_ONCE + SUPERVISED_PER_TURN * options.turns
    if options.text_tokens < supervised:
        raise UsageError(f"--text-tokens {options.text_tokens}: {options.turns} turns need at least {supervised}")
    memory = [MEMORY] if options.history else []
    plain = options.text_tokens - supervised
    ids = [1] * plain + memory + [IMAGE] * options.turns + [1] * supervised
    labels = [IGNORED] * (len(ids) - supervised) + [1] * supervised
    count, size = options.turns + options.history, config.vision.image_size
    images = torch.zeros(count, 3, size, size, device=device)
    batch = {
        "input_ids": [ids] * options.batch,
        "images": [images] * options.batch,
        "labels": [labels] * options.batch,
    }
    return Probe(
        batch,
        tokens=sum(token >= 0 for token in ids) + count * config.image_tokens,
        supervised=sum(label >= 0 for label in labels[1:]),
        width=config.vocab_size,
    )


def flops(config: StreamVLNConfig, options: StreamVLNStep, parts: Mapping[str, int], tokens: int) -> float:
    """See `operations`."""
    patches = (config.vision.image_size // config.vision.patch_size) ** 2 * (options.turns + options.history)
    return operations(options, parts, patches, tokens, (VISION_TOWER,), LANGUAGE_MODEL)


def changes(options: StreamVLNPlanning) -> Iterator[Change]:
    """Changes after which another model is trained."""
    fields: Fields
    if options.history > 4:
        fields = (("history", options.history // 2),)
        yield Change(
            "history", f"--history {options.history // 2}", 14, fields, "less memory of the way: lower SR"
        )
    if options.frames > 16:
        fields = (("frames", options.frames // 2),)
        yield Change("frames", f"--frames {options.frames // 2}", 14, fields, "shorter windows: lower SR")
    yield from part_changes(options, VISION_TOWER, LANGUAGE_MODEL, "vision tower frozen")


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
