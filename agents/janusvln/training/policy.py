"""JanusVLN as a policy: it answers by chance, in simulators or at steps of walks, and remembers what it drew."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.policy import FIRST_SLOT, ActsByChance, Walk, Walks
from agents.common.decoders.sampling import Draws
from agents.common.qwen2_5_vl.network import IGNORED
from agents.janusvln.decode import Decoder, Question
from agents.janusvln.loop import EXPECTS, EpisodeLoop
from agents.janusvln.network.model import JanusVLN
from agents.janusvln.prompt import LABELS, Prompts
from agents.janusvln.training.features import Seen
from agents.janusvln.training.samples import Reader, Sample, StepSamples
from agents.janusvln.training.walks import WalkSet
from vlnbench.interfaces import Action, Conventions
from vlnbench.training.family import policy as contract
from vlnbench.training.family.policy import Recorded, Sampling
from vlnbench.training.family.trains import SetContent

AT_ONCE = 8


@dataclass
class _Walk(Walk):
    """Every answer is a window of its own. frames: all that were seen, resized; geometry: of the last of them."""

    frames: list[NDArray[np.uint8]] = field(default_factory=list)
    geometry: Tensor | None = None
    samples: list[tuple[Sample, int]] = field(default_factory=list)

    def windows(self) -> list[tuple[Sample, int]]:
        return self.samples


class JanusVLNPolicy(Walks[_Walk]):
    """A `Policy`; see there.

    What VGGT saw while the network acted is part of what is learned from: it never trains, and it remembers frames
    that a question does not show. Scores are not penalized for repetition.
    """

    def __init__(
        self, model: JanusVLN, settings: GenerationSettings, prompts: Prompts, sampling: Sampling
    ) -> None:
        super().__init__(_Walk, sampling)
        self.model, self._settings = model, settings
        self._prompts, self._sampling = prompts, sampling

    def renew(self) -> None:
        """The weights are used where they are: only what was seen and recorded goes."""
        self.forget()
        self._decoder = _ByChance(self, self._settings, self._sampling.answer_tokens)

    def agent(self) -> PolicyAgent:
        return PolicyAgent(self._prompts, self)

    # what the loop needs of a decoder

    def begin(self, slot: int) -> None:
        self._decoder.begin(slot)

    def memory(self, slot: int) -> Any:
        return self._decoder.memory(slot)

    def see(self, frames: Mapping[int, NDArray[np.uint8]]) -> None:
        self._decoder.see(frames)
        for slot, frame in frames.items():
            self._walks[slot].frames.append(frame)

    def run(self, questions: Sequence[Question]) -> list[list[int]]:
        """As `Decoder.run`, by chance; what is drawn is recorded."""
        return self.drawn(self._decoder.run, list(questions))

    def questions(self, sets: Sequence[SetContent]) -> StepQuestions:
        return StepQuestions(sets, self._prompts, self.model)

    def answer(self, prompts: Sequence[Any], seeds: Sequence[int]) -> list[Recorded]:
        asked = list(zip(prompts, seeds, strict=True))
        chunks = (asked[first : first + AT_ONCE] for first in range(0, len(asked), AT_ONCE))
        return [recorded for chunk in chunks for recorded in self._answer(chunk)]

    def _answer(self, asked: Sequence[tuple[tuple[list[int], Tensor], int]]) -> list[Recorded]:
        """Answers to some prompts, whose frames are seen one after the other and forgotten at once."""
        questions = []
        for place, ((ids, frames), seed) in enumerate(asked):
            slot = FIRST_SLOT + place
            self._walks[slot] = _Walk(f"prompt {place}", seed)
            self.begin(slot)
            questions.append(Question(slot, ids, list(range(len(frames)))))
        for step in range(max(len(frames) for (_, frames), _ in asked)):
            shown = {FIRST_SLOT + place: frames for place, ((_, frames), _) in enumerate(asked)}
            self.see({slot: frames[step].numpy() for slot, frames in shown.items() if step < len(frames)})
        found = []
        for question, answer in zip(questions, self.run(questions), strict=True):
            walk = self._walks.pop(question.slot)
            self._decoder.begin(question.slot)
            walk.actions = (LABELS.get(self._prompts.text(answer), Action.STOP),)
            found.append(walk.recorded())
        return found

    def _record(self, question: Question, answer: list[int]) -> None:
        walk, ids = self._walks[question.slot], question.input_ids
        grid, _ = self.memory(question.slot).current
        frames = torch.from_numpy(np.stack([walk.frames[step] for step in question.steps]))
        assert walk.geometry is not None
        key = f"{walk.name}/{walk.seed}/{walk.answers}"
        labels = [IGNORED] * len(ids) + answer
        seen = Seen(
            key, walk.geometry.clone(), None
        )  # a clone takes part in a backward pass, what was seen cannot
        walk.samples.append((Sample([*ids, *answer], labels, grid, frames, geometries=[seen]), len(answer)))
        walk.answers += 1
        walk.chances += self._sampler.end(question.slot, len(answer))
        walk.formed += answer[-1] in self._settings.eos and self._prompts.text(answer) in LABELS

    def measured(self, slots: Sequence[int], features: Tensor) -> None:
        """Keep what VGGT has just seen in each slot, (slots, patches, 2 width)."""
        for slot, seen in zip(slots, features.cpu(), strict=True):
            self._walks[slot].geometry = seen

    def draw(
        self, questions: Sequence[Question], answers: Sequence[Sequence[int]], logits: Tensor
    ) -> list[list[int]]:
        """Draw the next token of every answer by its row of logits (rows, vocabulary)."""
        pairs = zip(questions, answers, strict=True)
        return self._sampler.draw([Draws(asked.slot, len(told), 1) for asked, told in pairs], logits[:, None])


class _ByChance(Decoder):
    """A decoder whose policy draws the tokens and is told what VGGT sees."""

    def __init__(self, policy: JanusVLNPolicy, settings: GenerationSettings, answer_tokens: int) -> None:
        super().__init__(policy.model, settings, max_new_tokens=answer_tokens, max_batch=AT_ONCE)
        self._policy = policy

    def _measured(self, slots: Sequence[int], features: Tensor) -> None:
        self._policy.measured(slots, features)

    def _choose(
        self, questions: Sequence[Question], answers: Sequence[Sequence[int]], logits: Tensor, seen: Tensor
    ) -> Tensor:
        return torch.tensor(self._policy.draw(questions, answers, logits), device=logits.device)[:, 0]


class PolicyAgent(ActsByChance, EpisodeLoop):
    """JanusVLN in simulators, acting by chance and remembered by its policy."""

    expects: Conventions = EXPECTS

    def __init__(self, prompts: Prompts, policy: JanusVLNPolicy) -> None:
        self._policy = policy
        config = policy.model.config
        super().__init__(prompts, policy, config.num_history, sys.maxsize, config.image_width)

    def asks(self, slot: int) -> bool:
        return True  # an answer has one action


class StepQuestions:
    """The steps of walks, in the words of evaluation; a `Questions`."""

    def __init__(self, sets: Sequence[SetContent], prompts: Prompts, model: JanusVLN) -> None:
        self._samples: list[StepSamples] = []
        self._places: list[tuple[int, int]] = []
        for content in sets:
            assert isinstance(content, WalkSet)
            reader = Reader(model.config.image_width)
            samples = StepSamples(content, prompts, model.config, reader, published=False)
            self._places += [(len(self._samples), index) for index in range(len(samples))]
            self._samples.append(samples)

    def __len__(self) -> int:
        return len(self._places)

    def question(self, index: int, seed: str) -> contract.Question:
        number, place = self._places[index]
        samples = self._samples[number]
        sample = samples.sample(place, random.Random(seed))
        asked = [id_ for id_, label in zip(sample.input_ids, sample.labels, strict=True) if label == IGNORED]
        walk, _, step = samples.content.keys[place]
        return contract.Question((asked, sample.frames), (samples.content.walks[walk].actions[step],))
