"""A conversation about frames as a training sample, and such samples as a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from agents.common.packing.frames import Frame, pack


@dataclass(frozen=True, slots=True)
class Sample:
    """input_ids: with placeholders. labels: as many, `IGNORED` where the loss does not look. images: float32
    (frames, 3, size, size), the current one last; or as many frames with keys, where features are kept."""

    input_ids: list[int]
    labels: list[int]
    images: Tensor | list[Frame]


def collate(samples: Sequence[Any]) -> dict[str, Any]:
    """Samples, or others that have its fields, as the arguments of a network, which pads them itself.

    Frames with keys are packed; whoever has the features puts those in their place.
    """
    keyed = [sample.images for sample in samples if isinstance(sample.images, list)]
    return {
        "input_ids": [sample.input_ids for sample in samples],
        "images": pack(keyed) if keyed else [sample.images for sample in samples],
        "labels": [sample.labels for sample in samples],
    }
