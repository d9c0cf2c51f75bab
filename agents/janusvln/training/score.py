"""How likely a JanusVLN finds each of the four answers on expert walks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from agents.common.checkpoints.placement import place
from agents.common.qwen2_5_vl.language import expand
from agents.janusvln import checkpoint
from agents.janusvln.network.model import JanusVLN, together
from agents.janusvln.prompt import LABELS, Prompts
from agents.janusvln.training.options import JanusVLNTraining
from agents.janusvln.training.samples import Reader, Sample, StepSamples
from agents.janusvln.training.walks import read_set
from vlnbench.interfaces import Action
from vlnbench.training.family.trains import Answer


class StepScorer:
    """Scores the steps of walks as the agent would be asked there. An answer's loss is that of all its tokens."""

    def __init__(self, path: Path, device: torch.device) -> None:
        found = place(str(device), "auto", "sdpa", torch.bfloat16)
        self._path = path
        self._model = checkpoint.load(path, dtype=found.dtype, device=device)
        self._prompts = Prompts(checkpoint.load_tokenizer(path, self._model.config))
        self._answers = {action: self._prompts.answer(label)[:-1] for label, action in LABELS.items()}

    def __call__(self, folder: Path, batch: int) -> Iterator[Answer]:
        """The answers at every step of a set, for each instruction."""
        config = self._model.config
        options = JanusVLNTraining(
            checkpoint=str(self._path), out=folder, history=config.num_history, instructions="all"
        )
        content = read_set(folder, options)
        samples = StepSamples(content, self._prompts, config, Reader(config.image_width), published=False)
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
