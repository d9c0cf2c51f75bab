"""Answers of networks that remember frames as tokens, for many episodes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.common.decoders.placeholders import lay_out
from agents.common.decoders.sampling import Sampler
from agents.common.decoders.turns import IMAGE_BATCH, Decoder, Network, Turn
from agents.common.memory import Memory
from agents.common.towers.eva import network_input


class Remembers(Network, Protocol):
    """A network that is asked with what it remembers; separator: the id between parts of that."""

    separator: int

    def memory(self) -> Memory:
        """That of an episode."""
        ...

    def tokens(self, features: Tensor, counts: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Of the features of several videos, so many frames each: tokens of every frame as it is remembered, and
        of the last one as the current frame."""
        ...


class Question(NamedTuple):
    """What is asked in a slot: token ids, and the frames since the last question, as the network sees them."""

    slot: int
    ids: list[int]
    frames: list[NDArray[np.uint8]]


class Answers:
    """Looks at frames, remembers them, and answers, for many slots at once; by chance where there is a sampler."""

    def __init__(self, model: Remembers, decoder: Decoder, sampler: Sampler | None) -> None:
        self.model, self._decoder, self._sampler, self.noted = model, decoder, sampler, decoder.noted
        self.memories: dict[int, Memory] = {}
        self._seeds: dict[int, tuple[int, int]] = {}

    def begin(self, slot: int, seed: int) -> None:
        """Forget what is remembered in a slot; tokens of its answers are drawn by the seed."""
        self._decoder.drop(slot)
        self.memories[slot] = self.model.memory()
        self._seeds[slot] = seed, 0

    @torch.inference_mode()
    def run(self, questions: Sequence[Question]) -> list[list[int]]:
        """Token ids of the answers."""
        shown = network_input([frame for question in questions for frame in question.frames])
        features = torch.cat(
            [
                self.model.patch_features(part.to(self.model.device, self.model.dtype))
                for part in torch.split(shown, IMAGE_BATCH)
            ]
        )
        turns = []
        videos = self.model.tokens(features, [len(each.frames) for each in questions])
        for question, (frames, current) in zip(questions, videos, strict=True):
            memory = self.memories[question.slot]
            for frame in frames:
                memory.add(frame)
            ids, rows, _ = lay_out(question.ids, memory.chunks(), current, self.model.separator)
            turns.append(Turn(question.slot, ids, rows, opens_window=True))
            if self._sampler is not None:
                seed, number = self._seeds[question.slot]
                self._sampler.begin(question.slot, f"{seed}/{number}")
                self._seeds[question.slot] = seed, number + 1
        answers = self._decoder.run(turns)
        for turn, answer in zip(turns, answers, strict=True):
            if self._sampler is not None:
                self._sampler.end(turn.slot, len(answer))
        return answers
