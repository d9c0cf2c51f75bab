"""Output layers that are the embeddings (tie_word_embeddings), whether files hold them once or twice.

Where a file has both with unlike numbers, one program takes either, another the last one read: that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from torch import nn

EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def tied_name(tied: bool) -> Callable[[str], str]:
    """Of a parameter's name: where output layer and embeddings are `tied`, the same one for both."""
    return lambda name: EMBEDDINGS if tied and name == HEAD else name


def add_head(entries: MutableMapping[str, Any]) -> None:
    """Count the embeddings as the output layer, too, for a network that has one of its own; see `fill_head`."""
    if EMBEDDINGS in entries:
        entries[HEAD] = entries[EMBEDDINGS]


def fill_head(model: Any) -> None:
    """Give the output layer the embeddings' numbers in memory of its own: they part once it is trained."""
    model.lm_head.weight = nn.Parameter(model.model.embed_tokens.weight.detach().clone())
