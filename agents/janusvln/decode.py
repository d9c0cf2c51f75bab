"""What JanusVLN remembers of each episode, and greedy decoding of its answers for many episodes at once.

Every step asks anew: the geometry of the current frame is added to all images of the question, so nothing of the
language model's work on one step can be used in the next. What Qwen's tower sees in a frame depends on that frame
alone and is kept, where the original encodes the whole history again at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.qwen2_5_vl.decode import Row, decode, in_batches, penalized
from agents.common.qwen2_5_vl.image import Grid, grid_of
from agents.common.qwen2_5_vl.language import expand
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


Choose = Callable[[Sequence[Question], Sequence[Sequence[int]], Tensor], list[int]]
"""The next token of every answer; answers so far, logits float32 (rows, vocabulary)."""


class Decoder:
    """Remembers frames and answers questions for any number of slots, at most `max_batch` of them in one pass.

    The repetition penalty sees the question and the answer so far, image placeholders included, as the original
    has it. An answer ends with an end token, included, or after `max_new_tokens`. `choose` takes the place of
    greedy decoding, without the penalty then.
    """

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
        self.model = model.eval()
        self.settings = settings
        self.max_new_tokens = max_new_tokens
        self.max_batch = max_batch
        self._window, self._choose = window, choose
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

    @torch.inference_mode()
    def run(self, questions: Sequence[Question]) -> list[list[int]]:
        """The answers to `questions`, in their order. A slot may occur once.

        Raises ValueError, before any is answered, where placeholders and images do not match.
        """
        rows = [self._expanded(question) for question in questions]
        return in_batches(rows, self.max_batch, lambda batch: self._answer(batch, questions, rows))

    def _expanded(self, question: Question) -> Row:
        grid, _ = self._current(question.slot)
        return expand(question.input_ids, [grid] * len(question.steps), self.model.config.image_token)

    def _fused(self, question: Question) -> Tensor:
        """Embeddings of a question's images (images * embeddings, hidden)."""
        images = self._memories[question.slot].images
        shown = torch.stack([images[step] for step in question.steps]).to(self.model.device)
        _, geometry = self._current(question.slot)
        return self.model.fuse(shown, geometry).flatten(0, 1)

    def _current(self, slot: int) -> tuple[Grid, Tensor]:
        """Grid and geometry of the frame that the slot saw last."""
        found = self._memories[slot].current
        if found is None:
            raise ValueError(f"slot {slot} has seen no frame")
        return found

    def _answer(self, batch: list[int], questions: Sequence[Question], rows: Sequence[Row]) -> list[list[int]]:
        """The answers to a batch of all questions, by their positions."""
        asked = [questions[i] for i in batch]
        return decode(
            self.model,
            [rows[i] for i in batch],
            torch.cat([self._fused(question) for question in asked]),
            self.settings,
            self.max_new_tokens,
            lambda answers, logits, seen: self._next(asked, answers, logits, seen),
        )

    def _next(
        self, questions: Sequence[Question], answers: Sequence[Sequence[int]], logits: Tensor, seen: Tensor
    ) -> list[int]:
        if self._choose is not None:
            return self._choose(questions, answers, logits)
        best: list[int] = penalized(logits, seen, self.settings.repetition_penalty).argmax(-1).tolist()
        return best


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
