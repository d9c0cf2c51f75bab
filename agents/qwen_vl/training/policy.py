"""Qwen2.5-VL as a policy: it answers by chance, in simulators or on windows, and remembers what it drew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.policy import FIRST_SLOT, ActsByChance, Walk, Walks
from agents.common.decoders.sampling import Draws
from agents.common.prompts.navigation import FORWARD_M
from agents.common.qwen2_5_vl.network import IGNORED
from agents.qwen_vl.decode import Answerer, Question
from agents.qwen_vl.loop import EpisodeLoop
from agents.qwen_vl.network import QwenVL
from agents.qwen_vl.prompt import Prompts
from agents.qwen_vl.training.options import QwenVLTraining
from agents.qwen_vl.training.samples import QuestionDataset, QwenVLSet, Sample
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions
from vlnbench.training import policy as contract
from vlnbench.training.family import SetContent
from vlnbench.training.policy import Recorded, Sampling

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
        options: QwenVLTraining,
        sampling: Sampling,
    ) -> None:
        super().__init__(_Walk, sampling)
        self._model, self._settings, self._prompts = model, settings, prompts
        self._options, self._sampling = options, sampling

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
        return PolicyAgent(self._prompts, self, self._options)

    def run(self, questions: Sequence[Question]) -> list[list[int]]:
        """As `Answerer.run`, by chance; what is drawn is recorded."""
        return self.drawn(self._answerer.run, list(questions))

    def questions(self, sets: Sequence[SetContent]) -> QuestionsOfWalks:
        return QuestionsOfWalks(sets, self._prompts, self._options)

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
        return [row[0] for row in self._sampler.draw(wanted, logits[:, None])]


class PolicyAgent(ActsByChance, EpisodeLoop):
    """Qwen2.5-VL in simulators, acting by chance and remembered by its policy."""

    def __init__(self, prompts: Prompts, policy: QwenVLPolicy, options: QwenVLTraining) -> None:
        self._policy = policy
        self.expects = Conventions(forward_m=FORWARD_M, turn_deg=options.turn_deg)
        super().__init__(prompts, policy, options.history, options.max_pixels)


class QuestionsOfWalks:
    """The questions of collected walks, as in training; a `Questions`."""

    def __init__(self, sets: Sequence[SetContent], prompts: Prompts, options: QwenVLTraining) -> None:
        self._datasets: list[QuestionDataset] = []
        self._places: list[tuple[int, int]] = []
        for content in sets:
            if not isinstance(content, QwenVLSet):
                raise UsageError(f"{content.file}: has no walks, and so no actions to compare answers with")
            dataset = QuestionDataset(content, prompts, options.history, options.max_pixels)
            self._places += [(len(self._datasets), index) for index in range(len(dataset))]
            self._datasets.append(dataset)

    def __len__(self) -> int:
        return len(self._places)

    def question(self, index: int, seed: str) -> contract.Question:
        number, window = self._places[index]
        ids, frames, expected = self._datasets[number].question(window)
        return contract.Question((ids, frames), tuple(expected))
