"""Training samples of Qwen2.5-VL, and what it draws itself when it learns from rewards."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from agents.common.decoders.placeholders import IGNORED
from agents.common.decoders.policy import SampledActing, Walk, Window
from agents.common.prompts.navigation import FORWARD_M
from agents.common.qwen2_5_vl.image import resize
from agents.common.qwen2_5_vl.policy import QwenRecorder
from agents.common.sets.answers import AnswerSet
from agents.common.sight.pictures import decoded
from agents.qwen_vl.agent import EpisodeLoop, Prompts
from agents.qwen_vl.network import Answerer, Question
from vlnbench.errors import UsageError
from vlnbench.interfaces import Conventions
from vlnbench.training.family import policy as contract
from vlnbench.training.family.trains import SetContent


@dataclass(frozen=True, slots=True)
class Sample:
    """A question with its answer.

    input_ids: L token ids with a placeholder per image. labels: L ids, `IGNORED` where the loss does not look.
    frames: uint8 (k, height, width, 3), the current one last.
    """

    input_ids: list[int]
    labels: list[int]
    frames: Tensor


class QuestionDataset:
    """The questions of a set; see `Samples`."""

    def __init__(self, content: AnswerSet, prompts: Prompts) -> None:
        self._content, self._prompts, self._inputs = content, prompts, prompts.inputs
        self._keys = content.keys()
        self.places = range(len(self._keys))

    def __len__(self) -> int:
        return len(self._keys)

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Nothing is drawn."""
        question = self.question(index, rng)
        ids, frames = question.prompt
        answer = self._prompts.answer(question.expected)
        return Sample([*ids, *answer], [IGNORED] * len(ids) + answer, frames)

    def question(self, index: int, rng: random.Random) -> contract.Question:
        """Token ids and frames of a question, and what the expert did. Nothing is drawn."""
        asked = self._content.asked(self._keys[index], self._inputs.history)
        ids = self._prompts.question(asked.instruction, asked.done, len(asked.frames) - 1)
        frames = [decoded(path, self._scaled, "extract it again") for path in asked.frames]
        return contract.Question((ids, torch.from_numpy(np.stack(frames))), asked.expected)

    def _scaled(self, image: Image.Image) -> NDArray[np.uint8]:
        return resize(image.convert("RGB"), self._inputs.max_pixels)


def collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as the arguments of `QwenVL.forward`, which pads them itself."""
    return {
        "input_ids": [sample.input_ids for sample in samples],
        "frames": [sample.frames for sample in samples],
        "labels": [sample.labels for sample in samples],
    }


class QwenVLPolicy(QwenRecorder):
    """A `Policy`; see there."""

    _prompts: Prompts

    def agent(self) -> PolicyAgent:
        return PolicyAgent(self._prompts, self)

    def decoder(self) -> Answerer:
        longest = self._sampling.answer_tokens
        return Answerer(self._model, self._settings, max_new_tokens=longest, choose=self.choose)

    def asked(self, prompts: Mapping[int, tuple[list[int], Tensor]]) -> list[Question]:
        return [Question(slot, *prompt) for slot, prompt in prompts.items()]

    def take_in(self, walk: Walk, question: Question) -> None:
        walk.see(question.input_ids, question.frames)

    def sample(self, window: Window) -> Sample:
        return Sample(window.ids, window.labels, *window.shown)

    def asks(self, content: SetContent) -> QuestionDataset:
        if not isinstance(content, AnswerSet):
            raise UsageError(f"{content.file}: has no walks, and so no actions to compare answers with")
        return QuestionDataset(content, self._prompts)


class PolicyAgent(SampledActing, EpisodeLoop):
    """Qwen2.5-VL in simulators, acting by chance and remembered by its policy."""

    def __init__(self, prompts: Prompts, policy: QwenVLPolicy) -> None:
        self._recorder = policy
        self.expects = Conventions(forward_m=FORWARD_M, turn_deg=prompts.inputs.turn_deg)
        super().__init__(prompts, policy)
