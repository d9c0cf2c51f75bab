"""Qwen2.5-VL as a policy: it answers by chance, in simulators or on windows, and remembers what it drew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from agents.common.files import GenerationSettings
from agents.common.sampling import Draws, Sampler
from agents.janusvln.network.model import IGNORED
from agents.openai.prompt import FORWARD_M
from agents.qwen_vl.decode import Answerer, Question
from agents.qwen_vl.loop import EpisodeLoop
from agents.qwen_vl.network import QwenVL
from agents.qwen_vl.prompt import Prompts
from agents.qwen_vl.training.options import QwenVLTraining
from agents.qwen_vl.training.samples import QuestionDataset, QwenVLSet, Sample
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions, Episode, Observation, Scalar, Sensor
from vlnbench.training.family import SetContent
from vlnbench.training.objectives.grpo import policy as contract
from vlnbench.training.objectives.grpo.policy import Recorded, Sampling

FIRST_SLOT = 1_000_000
"""Slots of answers without an episode; those of simulators are numbered from 0."""
AT_ONCE = 8


@dataclass
class _Walk:
    """What is recorded of an episode or of one answer."""

    seed: int
    samples: list[Sample] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    formed: int = 0
    actions: tuple[Action, ...] = ()
    cut: bool = False

    def recorded(self) -> Recorded:
        return Recorded(
            samples=tuple(self.samples),
            tokens=tuple(self.tokens),
            chances=tuple(self.chances),
            answers=len(self.samples),
            formed=self.formed,
            actions=self.actions,
            cut=self.cut,
        )


class QwenVLPolicy:
    """A `Policy`; see there. Every answer is a window of its own."""

    def __init__(
        self,
        model: QwenVL,
        settings: GenerationSettings,
        prompts: Prompts,
        options: QwenVLTraining,
        sampling: Sampling,
    ) -> None:
        self._model, self._settings, self._prompts = model, settings, prompts
        self._options, self._sampling = options, sampling
        self._sampler = Sampler(sampling.temperature, sampling.top_p)
        self._walks: dict[int, _Walk] = {}
        self._done: dict[tuple[str, int], _Walk] = {}

    def renew(self) -> None:
        """The weights are used where they are: only what was recorded goes."""
        self._walks.clear()
        self._done.clear()
        self._answerer = Answerer(
            self._model,
            self._settings,
            max_new_tokens=self._sampling.answer_tokens,
            max_batch=AT_ONCE,
            choose=self._choose,
        )

    def agent(self) -> PolicyAgent:
        return PolicyAgent(self._prompts, self, self._options)

    def begin(self, slot: int, episode: Episode, seed: int) -> None:
        """Remember what is drawn in a slot from now on."""
        self._walks[slot] = self._done[episode.episode_id, seed] = _Walk(seed)

    def recorded(self, episode_id: str, seed: int) -> Recorded:
        return self._done.pop((episode_id, seed)).recorded()

    def is_used_up(self, slot: int) -> bool:
        """Whether the walk has had all answers that it may have; it counts as cut then."""
        walk, cap = self._walks[slot], self._sampling.turn_cap
        walk.cut = cap is not None and len(walk.samples) >= cap
        return walk.cut

    def run(self, questions: Sequence[Question]) -> list[list[int]]:
        """As `Answerer.run`, by chance; what is drawn is recorded."""
        for question in questions:
            walk = self._walks[question.slot]
            self._sampler.begin(question.slot, f"{walk.seed}/{len(walk.samples)}")
        answers = self._answerer.run(questions)
        for question, answer in zip(questions, answers, strict=True):
            self._record(question, answer)
        return answers

    def questions(self, sets: Sequence[SetContent]) -> QuestionsOfWalks:
        return QuestionsOfWalks(sets, self._prompts, self._options)

    def answer(self, prompts: Sequence[Any], seeds: Sequence[int]) -> list[Recorded]:
        questions = []
        for place, ((ids, frames), seed) in enumerate(zip(prompts, seeds, strict=True)):
            self._walks[FIRST_SLOT + place] = _Walk(seed)
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
        walk.samples.append(Sample([*ids, *answer], [IGNORED] * len(ids) + answer, question.frames))
        walk.tokens.append(len(answer))
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


class PolicyAgent(EpisodeLoop):
    """Qwen2.5-VL in simulators, acting by chance and remembered by its policy."""

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    privileged = False
    identity: Mapping[str, Scalar] = {}

    def __init__(self, prompts: Prompts, policy: QwenVLPolicy, options: QwenVLTraining) -> None:
        self._policy = policy
        self.expects = Conventions(forward_m=FORWARD_M, turn_deg=options.turn_deg)
        super().__init__(prompts, policy, options.history, options.max_pixels)

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self._policy.begin(slot, episode, seed)
        super().reset(slot, episode, seed)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """As `EpisodeLoop.act`; a walk that has had all of its answers stops."""
        idle = [slot for slot in observations if not self._slots[slot].queue]
        ended = {slot: Action.STOP for slot in idle if self._policy.is_used_up(slot)}
        left = {slot: seen for slot, seen in observations.items() if slot not in ended}
        return ended | (super().act(left) if left else {})


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
