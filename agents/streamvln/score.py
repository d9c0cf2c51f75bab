"""What a StreamVLN answers on expert walks, token by token, with the expert's earlier answers in its windows, and
to questions that are asked alone."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.common.checkpoints.placement import place
from agents.common.decoders.windows import Windows
from agents.common.sets.conversations import SYMBOLS, read_conversations
from agents.common.sets.trajectories import read_trajectories
from agents.streamvln import checkpoint
from agents.streamvln.network import StreamVLN
from agents.streamvln.prompt import Prompts
from agents.streamvln.samples import ConversationDataset, FrameReader, Sample, WindowDataset, window_lengths
from vlnbench.data.sets import CONVERSATIONS, holds_questions
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.training.family.trains import Answer

_WAY = re.compile("[←→]+|↑")
"""An answer that says which way something is: turns, or a step if it is ahead."""


class WindowScorer:
    """Scores windows as the agent would be asked in them; the phrases it draws depend on the window alone."""

    def __init__(self, path: Path, device: torch.device) -> None:
        found = place(str(device), "auto", "auto", torch.bfloat16)
        self._model = checkpoint.load(path, dtype=found.dtype, attn=found.attn).to(device).eval()
        self._windows = Windows.of(self._model.config, path)
        self._prompts = Prompts(checkpoint.load_tokenizer(path, None))
        self._actions = self._prompts.action_ids()

    def __call__(self, folder: Path, batch: int) -> Iterator[Answer]:
        """The answers of every window of a set's folder, windows of like length together."""
        return (self._asked if holds_questions(folder) else self._walked)(folder, batch)

    def _asked(self, folder: Path, batch: int) -> Iterator[Answer]:
        """The first action of every answer that says which way. Raises UsageError where none does."""
        questions = [
            each
            for conversation in read_conversations(folder)
            for each in conversation.alone()
            if _WAY.fullmatch(each.turns[0][1])
        ]
        if not questions:
            raise UsageError(f"{folder / CONVERSATIONS}: none of its answers is a way to turn; nothing to score")
        reader = FrameReader(self._model.config.vision.image_size)
        dataset = ConversationDataset(questions, self._prompts, reader, wording="evaluation")
        for first in range(0, len(questions), batch):
            chosen = questions[first : first + batch]
            samples = [dataset.sample(first + index, random.Random(0)) for index in range(len(chosen))]
            scored = score_windows(self._model, samples, self._actions)
            for question, ((predicted, loss), *_) in zip(chosen, scored, strict=True):
                scene = question.images[0].parent.name
                expected = SYMBOLS[question.turns[0][1][0]]
                yield Answer(f"{scene}_questions_{first}", 0, expected, None, predicted, loss)

    def _walked(self, folder: Path, batch: int) -> Iterator[Answer]:
        trajectories = read_trajectories(folder)
        reader = FrameReader(self._model.config.vision.image_size)
        dataset = WindowDataset(trajectories, self._prompts, self._windows, reader, wording="evaluation")
        lengths = window_lengths(trajectories, self._windows)
        order = sorted(range(len(dataset)), key=lambda index: lengths[index])
        for first in range(0, len(order), batch):
            chosen = order[first : first + batch]
            samples = [dataset.sample(index, random.Random(f"score/{index}")) for index in chosen]
            scored = score_windows(self._model, samples, self._actions)
            for index, sample, pairs in zip(chosen, samples, scored, strict=True):
                walked = trajectories[dataset.keys[index].trajectory]
                steps = [step for step in sample.time_ids if step not in walked.strays]
                for step, (predicted, loss) in zip(steps, pairs, strict=True):
                    before = walked.taught[step - 1] if step else None
                    name = walked.frames_dir.parent.name
                    yield Answer(name, step, walked.taught[step], before, predicted, loss)


@torch.inference_mode()
def score_windows(
    model: StreamVLN, samples: Sequence[Sample], actions: dict[int, Action]
) -> list[list[tuple[Action | None, float]]]:
    """For every label that is an action, in order: the likeliest answer, None if that is none, and the loss."""
    frames = [sample.images for sample in samples]
    assert all(isinstance(each, Tensor) for each in frames)
    features = model.encode_images(torch.cat([each for each in frames if isinstance(each, Tensor)]))
    pairs = [model.expand(sample.input_ids, len(sample.images), sample.labels) for sample in samples]
    # No attention mask: padding is on the right, where causal attention never looks.
    expanded = nn.utils.rnn.pad_sequence([ids for ids, _ in pairs], batch_first=True)
    hidden = model.model(inputs_embeds=model.embed(expanded, features), use_cache=False).last_hidden_state
    known = torch.tensor(sorted(actions))
    found = []
    for row, (_, targets) in zip(hidden, pairs, strict=True):
        asked = torch.isin(targets[1:], known)
        scores = model.lm_head(row[: len(targets) - 1][asked.to(row.device)]).float()
        losses = functional.cross_entropy(scores, targets[1:][asked].to(row.device), reduction="none")
        likeliest = [actions.get(id_) for id_ in scores.argmax(dim=-1).tolist()]
        found.append(list(zip(likeliest, losses.tolist(), strict=True)))
    return found
