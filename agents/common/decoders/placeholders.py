"""Placeholders of images in token ids, as LLaVA writes them, and how they make room for embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

IMAGE, MEMORY, IGNORED = -200, -300, -100
"""Placeholder ids of an image and of all memory frames, and the label that takes no part in the loss."""


def expand(
    ids: Sequence[int], images: int, tokens: int, labels: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Ids and labels with every placeholder repeated once per embedding that takes its place, `tokens` per image.

    `images` is how many images belong to the sequence: memory frames first, then one per image placeholder.
    Expanded placeholders have negative ids and, where no labels are given, every label is ignored.

    Raises ValueError where placeholders and images do not match.
    """
    memory = images - ids.count(IMAGE)
    found = ids.count(MEMORY)
    if memory < 0 or found > 1 or (found == 1) != (memory > 0):
        raise ValueError(f"{images} images for {ids.count(IMAGE)} image and {found} memory placeholders")
    if found and IMAGE in ids[: ids.index(MEMORY)]:
        raise ValueError("the memory placeholder must come before the first image placeholder")
    repeats = torch.tensor([{IMAGE: tokens, MEMORY: tokens * memory}.get(token, 1) for token in ids])
    targets = torch.full((len(ids),), IGNORED) if labels is None else torch.tensor(labels)
    return torch.tensor(ids).repeat_interleave(repeats), targets.repeat_interleave(repeats)


def lay_out(
    ids: Sequence[int],
    chunks: Sequence[Tensor],
    current: Tensor,
    separator: int,
    labels: Sequence[int] | None = None,
) -> tuple[list[int], Tensor, list[int]]:
    """Ids with a placeholder for every embedding, these embeddings, and labels.

    In `ids`, MEMORY stands for the chunks, with a separator between any two, and IMAGE for the current frame.
    """
    found: list[int] = []
    rows: list[Tensor] = [current[:0]]
    told: list[int] = []
    for id_, label in zip(ids, labels or [IGNORED] * len(ids), strict=True):
        if id_ == MEMORY:
            for chunk in chunks:
                found += [separator] * bool(chunk is not chunks[0]) + [IMAGE] * len(chunk)
            rows += chunks
        elif id_ == IMAGE:
            found += [IMAGE] * len(current)
            rows.append(current)
        else:
            found.append(id_)
        told += [label if id_ >= 0 else IGNORED] + [IGNORED] * (len(found) - len(told) - 1)
    return found, torch.cat(rows), told
