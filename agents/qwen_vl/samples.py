"""Training samples of Qwen2.5-VL, and what it draws itself when it learns from rewards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.policy import FIRST_SLOT, ActsByChance, Walk, Walks
from agents.common.decoders.sampling import Draws
from agents.common.prompts.navigation import FORWARD_M
from agents.common.qwen2_5_vl.image import resize
from agents.common.qwen2_5_vl.network import IGNORED, undrawn
from agents.common.sets.answers import AnswerSet, read_frame
from agents.qwen_vl.agent import EpisodeLoop, Prompts
from agents.qwen_vl.network import Answerer, Question, QwenVL
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions
from vlnbench.training.family import policy as contract
from vlnbench.training.family.policy import Recorded, Sampling
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

    def __len__(self) -> int:
        return len(self._keys)

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Nothing is drawn."""
        ids, frames, expected = self.question(index)
        answer = self._prompts.answer(expected)
        return Sample([*ids, *answer], [IGNORED] * len(ids) + answer, frames)

    def question(self, index: int) -> tuple[list[int], Tensor, tuple[Action, ...]]:
        """Token ids and frames of a question, and what the expert did."""
        asked = self._content.asked(self._keys[index], self._inputs.history)
        ids = self._prompts.question(asked.instruction, asked.done, len(asked.frames) - 1)
        frames = [resize(read_frame(path), self._inputs.max_pixels) for path in asked.frames]
        return ids, torch.from_numpy(np.stack(frames)), asked.expected


def collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as the arguments of `QwenVL.forward`, which pads them itself."""
    return {
        "input_ids": [sample.input_ids for sample in samples],
        "frames": [sample.frames for sample in samples],
        "labels": [sample.labels for sample in samples],
    }


AT_ONCE = 8


@dataclass
class _Walk(Walk):
    """Every answer is a sample of its own."""

    samples: list[tuple[Sample, int]] = field(default_factory=list)

    def windows(self) -> list[tuple[Sample, int]]:
        return self.samples


class QwenVLPolicy(Walks[_Walk]):
    """A `Policy`; see there. Every answer is a window of its own."""

    def __init__(
        self,
        model: QwenVL,
        settings: GenerationSettings,
        prompts: Prompts,
        sampling: Sampling,
    ) -> None:
        super().__init__(_Walk, sampling)
        self._model, self._settings, self._prompts, self._sampling = model, settings, prompts, sampling

    def renew(self) -> None:
        """The weights are used where they are: only what was recorded goes."""
        self.forget()
        self._answerer = Answerer(
            self._model,
            self._settings,
            max_new_tokens=self._sampling.answer_tokens,
            max_batch=AT_ONCE,
            choose=self._choose,
        )

    def agent(self) -> PolicyAgent:
        return PolicyAgent(self._prompts, self)

    def run(self, questions: Sequence[Question]) -> list[list[int]]:
        """As `Answerer.run`, by chance; what is drawn is recorded."""
        return self.drawn(self._answerer.run, list(questions))

    def questions(self, sets: Sequence[SetContent]) -> QuestionsOfWalks:
        return QuestionsOfWalks(sets, self._prompts)

    def answer(self, prompts: Sequence[Any], seeds: Sequence[int]) -> list[Recorded]:
        questions = []
        for place, ((ids, frames), seed) in enumerate(zip(prompts, seeds, strict=True)):
            self._walks[FIRST_SLOT + place] = _Walk(f"prompt {place}", seed)
            questions.append(Question(FIRST_SLOT + place, ids, frames))
        found = []
        for question, answer in zip(questions, self.run(questions), strict=True):
            walk = self._walks.pop(question.slot)
            walk.actions = tuple(self._prompts.read(answer) or (Action.STOP,))
            found.append(walk.recorded())
        return found

    def _record(self, question: Question, answer: list[int]) -> None:
        walk = self._walks[question.slot]
        ids = question.input_ids
        sample = Sample([*ids, *answer], [IGNORED] * len(ids) + answer, question.frames)
        walk.samples.append((sample, len(answer)))
        walk.answers += 1
        walk.chances += self._sampler.end(question.slot, len(answer))
        ended = answer[-1] in self._settings.eos
        walk.formed += ended and self._prompts.read(answer) is not None

    def _choose(
        self, questions: Sequence[Question], answers: Sequence[Sequence[int]], logits: Tensor
    ) -> list[int]:
        wanted = [
            Draws(question.slot, len(answer), 1) for question, answer in zip(questions, answers, strict=True)
        ]
        token = self._model.config.image_token
        return [row[0] for row in self._sampler.draw(wanted, undrawn(logits, token)[:, None])]


class PolicyAgent(ActsByChance, EpisodeLoop):
    """Qwen2.5-VL in simulators, acting by chance and remembered by its policy."""

    def __init__(self, prompts: Prompts, policy: QwenVLPolicy) -> None:
        self._policy = policy
        self.expects = Conventions(forward_m=FORWARD_M, turn_deg=prompts.inputs.turn_deg)
        super().__init__(prompts, policy)


class QuestionsOfWalks:
    """The questions of collected walks, as in training; a `Questions`."""

    def __init__(self, sets: Sequence[SetContent], prompts: Prompts) -> None:
        self._datasets: list[QuestionDataset] = []
        self._places: list[tuple[int, int]] = []
        for content in sets:
            if not isinstance(content, AnswerSet):
                raise UsageError(f"{content.file}: has no walks, and so no actions to compare answers with")
            dataset = QuestionDataset(content, prompts)
            self._places += [(len(self._datasets), index) for index in range(len(dataset))]
            self._datasets.append(dataset)

    def __len__(self) -> int:
        return len(self._places)

    def question(self, index: int, seed: str) -> contract.Question:
        number, window = self._places[index]
        ids, frames, expected = self._datasets[number].question(window)
        return contract.Question((ids, frames), tuple(expected))
