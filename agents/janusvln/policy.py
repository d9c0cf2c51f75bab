"""JanusVLN as it answers by chance, in simulators or at steps of walks, and how likely it finds an expert."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from agents.common.checkpoints.files import GenerationSettings
from agents.common.checkpoints.placement import place
from agents.common.decoders.policy import FIRST_SLOT, ActsByChance, Walk, Walks
from agents.common.decoders.sampling import Draws
from agents.common.qwen2_5_vl.language import expand
from agents.common.qwen2_5_vl.network import IGNORED, undrawn
from agents.janusvln import network as checkpoint
from agents.janusvln.agent import EXPECTS, LABELS, EpisodeLoop, Prompts
from agents.janusvln.decode import Decoder, Question
from agents.janusvln.features import Seen
from agents.janusvln.network import JanusVLN, inputs_of, together
from agents.janusvln.options import JanusVLNShown, JanusVLNTraining
from agents.janusvln.samples import Reader, Sample, StepSamples, WalkSet, read_set
from vlnbench.interfaces import Action, Conventions
from vlnbench.training.family import policy as contract
from vlnbench.training.family.policy import Recorded, Sampling
from vlnbench.training.family.trains import Answer, SetContent

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
        for number, ((ids, frames), seed) in enumerate(asked):
            slot = FIRST_SLOT + number
            self._walks[slot] = _Walk(f"prompt {number}", seed)
            self.begin(slot)
            questions.append(Question(slot, ids, list(range(len(frames)))))
        for step in range(max(len(frames) for (_, frames), _ in asked)):
            shown = {FIRST_SLOT + number: frames for number, ((_, frames), _) in enumerate(asked)}
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
        wanted = [Draws(asked.slot, len(told), 1) for asked, told in zip(questions, answers, strict=True)]
        return self._sampler.draw(wanted, undrawn(logits, self.model.config.image_token)[:, None])


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
    """The steps of walks; a `Questions`."""

    def __init__(self, sets: Sequence[SetContent], prompts: Prompts, model: JanusVLN) -> None:
        self._samples: list[StepSamples] = []
        self._places: list[tuple[int, int]] = []
        for content in sets:
            assert isinstance(content, WalkSet)
            reader = Reader(model.config.image_width)
            samples = StepSamples(content, prompts, model.config, reader)
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


class StepScorer:
    """Scores the steps of walks as the agent would be asked there. An answer's loss is that of all its tokens."""

    def __init__(self, path: Path, device: torch.device) -> None:
        found = place(str(device), "auto", "sdpa", torch.bfloat16)
        self._path = path
        self._model = checkpoint.load(path, dtype=found.dtype, device=device)
        config = self._model.config
        inputs = inputs_of(config, path, JanusVLNShown())  # as the agent is asked
        self._model.config = config.shown(inputs.image_width, inputs.history)
        self._prompts = Prompts(checkpoint.load_tokenizer(path, config), inputs.wording)
        self._answers = {action: self._prompts.answer(label)[:-1] for label, action in LABELS.items()}

    def __call__(self, folder: Path, batch: int) -> Iterator[Answer]:
        """The answers at every step of a set, for each instruction."""
        config = self._model.config
        options = JanusVLNTraining(
            checkpoint=str(self._path), out=folder, history=config.num_history, instructions="all"
        )
        content = read_set(folder, options)
        samples = StepSamples(content, self._prompts, config, Reader(config.image_width))
        for first in range(0, len(samples), batch):
            chosen = range(first, min(first + batch, len(samples)))
            scored = score_steps(self._model, [samples.sample(i, random.Random(i)) for i in chosen], self._answers)
            for index, losses in zip(chosen, scored, strict=True):
                number, _, step = content.keys[index]
                walk = content.walks[number]
                expected = walk.actions[step]
                likeliest = min(losses, key=lambda action: losses[action])
                yield Answer(walk.name, step, expected, walk.before[step], likeliest, losses[expected])


@torch.inference_mode()
def score_steps(
    model: JanusVLN, samples: Sequence[Sample], answers: dict[Action, list[int]]
) -> list[dict[Action, float]]:
    """For every sample the loss in nats of each answer, the end of its block included."""
    frames = [sample.frames for sample in samples]
    assert all(isinstance(each, Tensor) for each in frames)
    shown = [each for each in frames if isinstance(each, Tensor)]
    images = together(model.visual.merger, together(model.tower_features, shown))
    geometries = together(model.merger, [found[None] for found in model.final_geometries(shown)])
    found: list[dict[Action, float]] = []
    for sample, image, geometry in zip(samples, images, geometries, strict=True):
        asked = [each for each, label in zip(sample.input_ids, sample.labels, strict=True) if label < 0]
        fused = model.fuse(image, geometry).flatten(0, 1)
        rows = [
            expand([*asked, *answer[:-1]], [sample.grid] * len(image), model.config.image_token)
            for answer in answers.values()
        ]
        hidden = model.hidden(rows, fused.repeat(len(rows), 1))
        losses = {}
        for row, state, (action, answer) in zip(rows, hidden, answers.items(), strict=True):
            scores = model.logits(state[: len(row[0])][-len(answer) :]).float()
            losses[action] = float(
                functional.cross_entropy(scores, torch.tensor(answer, device=model.device), reduction="sum")
            )
        found.append(losses)
    return found
