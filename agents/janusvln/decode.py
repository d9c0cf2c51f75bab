"""What JanusVLN remembers of each episode, and greedy decoding of its answers for many episodes at once.

Every step asks anew: the geometry of the current frame is added to all images of the question, so nothing of the
language model's work on one step can be used in the next. What Qwen's tower sees in a frame depends on that frame
alone and is kept, where the original encodes the whole history again at every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.qwen2_5_vl import decode
from agents.common.qwen2_5_vl.decode import Choose
from agents.common.qwen2_5_vl.image import Grid, grid_of
from agents.common.towers.vggt import FIRST, RECENT, FrameCache
from agents.janusvln.network import JanusVLN


@dataclass
class Memory:
    """One episode so far.

    `images` are the tower's embeddings (embeddings, hidden) of every frame, in the host's memory; `current` is the
    last frame's grid and its geometry (embeddings, hidden) in the light of those before. Where answers are learned
    from: `frames`, resized, and what VGGT has `seen` in the last one, (patches, 2 width), in the host's memory.
    """

    cache: FrameCache = field(default_factory=FrameCache)
    images: list[Tensor] = field(default_factory=list)
    current: tuple[Grid, Tensor] | None = None
    frames: list[NDArray[np.uint8]] = field(default_factory=list)
    seen: Tensor | None = None


@dataclass(frozen=True)
class Question:
    """A request for an answer: ids with a placeholder per image, and the frames that these show, by number."""

    slot: int
    input_ids: list[int]
    steps: list[int]


class Decoder(decode.Decoder[Question]):
    """Remembers frames and answers questions for any number of slots; see there."""

    def __init__(
        self,
        model: JanusVLN,
        settings: GenerationSettings,
        *,
        max_new_tokens: int = 24,
        max_batch: int = 8,
        window: tuple[int, int] = (FIRST, RECENT),
        choose: Choose | None = None,
    ) -> None:
        """`window`: of how many first and recent frames VGGT keeps keys and values."""
        super().__init__(model, settings, max_new_tokens, max_batch, choose)
        self.model, self._window = model, window
        self._memories: dict[int, Memory] = {}

    def begin(self, slot: int) -> None:
        """Forget what the slot has seen."""
        self._memories[slot] = Memory(FrameCache(*self._window))

    def memory(self, slot: int) -> Memory:
        return self._memories[slot]

    @torch.inference_mode()
    def see(self, frames: Mapping[int, NDArray[np.uint8]]) -> None:
        """Remember the next frame of each slot, resized, uint8 (height, width, 3)."""
        order = sorted(frames, key=lambda slot: frames[slot].shape)
        for _, alike in groupby(order, key=lambda slot: frames[slot].shape):
            slots = list(alike)
            for start in range(0, len(slots), self.max_batch):
                self._see(slots[start : start + self.max_batch], frames)

    def _see(self, slots: Sequence[int], frames: Mapping[int, NDArray[np.uint8]]) -> None:
        """The same for a batch of frames of one size."""
        memories = [self._memories[slot] for slot in slots]
        shown = torch.from_numpy(np.stack([frames[slot] for slot in slots])).to(self.model.device)
        looked = look(self.model, shown, [memory.cache for memory in memories])
        for memory, image, geometry in zip(memories, looked.images.cpu(), looked.geometries, strict=True):
            memory.images.append(image)
            memory.current = grid_of(*shown.shape[1:3]), geometry
        if self._choose is not None:
            for slot, memory, seen in zip(slots, memories, looked.features.cpu(), strict=True):
                memory.frames.append(frames[slot])
                memory.seen = seen

    def grids(self, question: Question) -> list[Grid]:
        return [self._current(question.slot)[0]] * len(question.steps)

    def fused(self, question: Question) -> Tensor:
        images = self._memories[question.slot].images
        shown = torch.stack([images[step] for step in question.steps]).to(self.model.device)
        return self.model.fuse(shown, self._current(question.slot)[1]).flatten(0, 1)

    def _current(self, slot: int) -> tuple[Grid, Tensor]:
        """Grid and geometry of the frame that the slot saw last."""
        found = self._memories[slot].current
        if found is None:
            raise ValueError(f"slot {slot} has seen no frame")
        return found


class Looked(NamedTuple):
    """Of the next frame of N slots: its embeddings, those of its geometry, both (N, embeddings, hidden), and what
    VGGT saw, of which these are made, (N, patches, 2 width)."""

    images: Tensor
    geometries: Tensor
    features: Tensor


def look(model: JanusVLN, frames: Tensor, caches: Sequence[FrameCache]) -> Looked:
    """See the next frame of every cache; see `JanusVLN.geometry_features`."""
    images = model.visual.merger(model.tower_features(frames))
    features = model.geometry_features(frames, caches)
    return Looked(images, model.merger(features), features)
