"""JanusVLN as it answers by chance, in simulators or at steps of walks, and how likely it finds an expert."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from agents.common.checkpoints.placement import place
from agents.common.decoders.policy import ActsByChance, Walk, Window
from agents.common.qwen2_5_vl import checkpoint
from agents.common.qwen2_5_vl.image import grid_of
from agents.common.qwen2_5_vl.language import expand
from agents.common.qwen2_5_vl.policy import QwenRecorder
from agents.janusvln.agent import EXPECTS, LABELS, EpisodeLoop, Prompts
from agents.janusvln.decode import Decoder, Memory, Question
from agents.janusvln.features import Seen
from agents.janusvln.network import JanusVLN, inputs_of, load, together
from agents.janusvln.options import JanusVLNShown, JanusVLNTraining
from agents.janusvln.samples import Reader, Sample, StepSamples, WalkSet, read_set
from vlnbench.interfaces import Action, Conventions
from vlnbench.training.family.trains import Answer, SetContent


class JanusVLNPolicy(QwenRecorder):
    """A `Policy`; see there.

    What VGGT saw while the network acted is part of what is learned from: it never trains, and it remembers frames
    that a question does not show.
    """

    at_once = 8
    _model: JanusVLN
    _prompts: Prompts

    def agent(self) -> PolicyAgent:
        return PolicyAgent(self._prompts, self, self._model)

    def decoder(self) -> Decoder:
        longest = self._sampling.answer_tokens
        return Decoder(self._model, self._settings, max_new_tokens=longest, choose=self.choose)

    # what the loop needs of a decoder beside `run`

    def begin(self, slot: int) -> None:
        self._decoder.begin(slot)

    def memory(self, slot: int) -> Memory:
        memory: Memory = self._decoder.memory(slot)
        return memory

    def see(self, frames: Mapping[int, NDArray[np.uint8]]) -> None:
        self._decoder.see(frames)

    def drop(self, slot: int) -> None:
        self.begin(slot)

    def asked(self, prompts: Mapping[int, tuple[list[int], Tensor]]) -> list[Question]:
        """Their frames are seen one after the other."""
        for slot in prompts:
            self.begin(slot)
        for step in range(max(len(frames) for _, frames in prompts.values())):
            shown = {slot: frames[step].numpy() for slot, (_, frames) in prompts.items() if step < len(frames)}
            self.see(shown)
        return [Question(slot, ids, list(range(len(frames)))) for slot, (ids, frames) in prompts.items()]

    def take_in(self, walk: Walk, question: Question) -> None:
        memory = self.memory(question.slot)
        assert memory.seen is not None
        frames = torch.from_numpy(np.stack([memory.frames[step] for step in question.steps]))
        # a clone takes part in a backward pass, what was seen cannot
        seen = Seen(f"{walk.name}/{walk.seed}/{walk.answers}", memory.seen.clone(), None)
        walk.see(question.input_ids, (frames, seen))

    def sample(self, window: Window) -> Sample:
        ((frames, seen),) = window.shown
        return Sample(window.ids, window.labels, grid_of(*frames.shape[1:3]), frames, geometries=[seen])

    def asks(self, content: SetContent) -> StepSamples:
        assert isinstance(content, WalkSet)
        config = self._model.config
        return StepSamples(content, self._prompts, config, Reader(config.image_width))


class PolicyAgent(ActsByChance, EpisodeLoop):
    """JanusVLN in simulators, acting by chance and remembered by its policy."""

    expects: Conventions = EXPECTS

    def __init__(self, prompts: Prompts, policy: JanusVLNPolicy, model: JanusVLN) -> None:
        self._recorder = policy
        super().__init__(prompts, policy, model.config.num_history, sys.maxsize, model.config.image_width)


class StepScorer:
    """Scores the steps of walks as the agent would be asked there. An answer's loss is that of all its tokens."""

    def __init__(self, path: Path, device: torch.device) -> None:
        found = place(str(device), "auto", "sdpa", torch.bfloat16)
        self._path = path
        self._model = load(path, dtype=found.dtype, device=device)
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
