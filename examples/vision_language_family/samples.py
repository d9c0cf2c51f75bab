"""Training samples: questions along collected walks, put as the agent puts them, with the expert's answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from PIL import Image
from torch import Tensor
from vision_language import question, read, shown
from vision_language_family.options import SeenInputs

from agents.common.decoders.placeholders import IGNORED
from agents.common.prompts.navigation import Template
from agents.common.sets.answers import AnswerSet, Asked
from agents.common.sight.pictures import decoded


class Sample(NamedTuple):
    """A question's text and frames, token ids of the answer, and what makes tensors of them."""

    question: str
    frames: list[Image.Image]
    answer: list[int]
    processor: Any


class Prompts:
    """Writes questions and answers in the words of a checkpoint's own template for chats."""

    def __init__(self, folder: Path, inputs: SeenInputs) -> None:
        self.processor, self.inputs = read(transformers.AutoProcessor, folder), inputs
        self._template = Template(inputs.prompt, inputs.actions_per_answer, inputs.turn_deg)

    def sample(self, asked: Asked, frames: Sequence[Image.Image]) -> Sample:
        """A question about frames, the current one last, and the expected answer with the end of it."""
        text = question(self.processor, self._template, asked.instruction, asked.done, len(frames))
        names = " ".join(action.name for action in asked.expected)
        said = (("user", ""), ("assistant", names))
        chat = [{"role": role, "content": [{"type": "text", "text": words}]} for role, words in said]
        whole = self.processor.apply_chat_template(chat)
        answer = whole[whole.rindex(names) :].rstrip()
        ids = self.processor.tokenizer(answer, add_special_tokens=False)["input_ids"]
        return Sample(text, [shown(each.copy(), self.inputs.side) for each in frames], ids, self.processor)


class QuestionDataset:
    """The questions of a set; a `Samples`."""

    def __init__(self, content: AnswerSet, prompts: Prompts) -> None:
        self._content, self._prompts, self._keys = content, prompts, content.keys()

    def __len__(self) -> int:
        return len(self._keys)

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Nothing is drawn."""
        asked = self._content.asked(self._keys[index], self._prompts.inputs.history)
        frames = [decoded(path, lambda image: image.convert("RGB"), "extract it again") for path in asked.frames]
        return self._prompts.sample(asked, frames)


def collate(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Samples as the arguments of the network, padded on the left, and `labels` (samples, longest answer)."""
    processor = samples[0].processor
    batch = dict(
        processor(
            text=[each.question for each in samples],
            images=[each.frames for each in samples],
            padding=True,
            padding_side="left",
            return_tensors="pt",
        )
    )
    longest = max(len(each.answer) for each in samples)
    labels = torch.tensor([[*each.answer, *[IGNORED] * (longest - len(each.answer))] for each in samples])
    known, pad = labels != IGNORED, processor.tokenizer.pad_token_id or 0
    added = {"input_ids": labels.where(known, pad), "attention_mask": known.long()}
    asked = batch["input_ids"].shape
    for name, value in batch.items():
        if value.shape == asked:  # one number for every token
            batch[name] = torch.cat([value, added.get(name, torch.zeros_like(labels))], dim=1)
    return {**batch, "labels": labels}
