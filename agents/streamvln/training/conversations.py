"""Questions and answers about images as training samples."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agents.common.sets.conversations import TAG, Conversation
from agents.common.sight.shown import Shown
from agents.streamvln.network.model import IGNORED, IMAGE
from agents.streamvln.prompt import SYSTEM, Content, Prompts
from agents.streamvln.training.samples import FrameReader, Sample, Wording


class ConversationDataset:
    """Conversations as training samples, beside the windows of a `WindowDataset`, whose wordings they share.

    With the wording of the evaluation an answer follows an empty assistant block, and labels are on answers alone.
    """

    def __init__(
        self,
        conversations: Sequence[Conversation],
        prompts: Prompts,
        frames: FrameReader,
        *,
        wording: Wording = "published",
        shown: Shown | None = None,
        at_once: int | None = None,
    ) -> None:
        """shown: what the conversations' images show, if that is to be told; at_once: of the questions of a
        conversation a sample has so many, drawn; None: all in order."""
        self._conversations, self._shown, self._at_once = conversations, shown, at_once
        self._prompts = prompts
        self._frames = frames
        self._write = self._as_evaluated if wording == "evaluation" else self._as_published
        self._marks = prompts.block_marks()

    def __len__(self) -> int:
        return len(self._conversations)

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Build one sample; `rng` draws questions, if that is asked for, and then the images' jitter."""
        conversation = self._conversations[index]
        if self._at_once is not None:
            conversation = conversation.drawn(self._at_once, rng)
        input_ids, labels = self._write([(_content(asked), told) for asked, told in conversation.turns])
        files = conversation.images
        images = self._frames.shown(index, range(len(files)), lambda: files, rng)
        shown = None if self._shown is None else self._shown.of(index)
        return Sample(input_ids, labels, images, 0, range(0), shown=shown)

    def _as_published(self, turns: Sequence[tuple[Content, str]]) -> tuple[list[int], list[int]]:
        blocks = [("system", self._prompts.block("system", SYSTEM))]
        for asked, told in turns:
            blocks.append(("user", self._prompts.block("user", *asked)))
            blocks.append(("assistant", self._prompts.block("assistant", told)))
        ids = [id_ for _, block in blocks for id_ in block]
        labels = [
            id_ if role == "assistant" or id_ in self._marks else IGNORED
            for role, block in blocks
            for id_ in block
        ]
        return ids, labels

    def _as_evaluated(self, turns: Sequence[tuple[Content, str]]) -> tuple[list[int], list[int]]:
        ids: list[int] = []
        labels: list[int] = []
        before = self._prompts.block("system", SYSTEM)
        for asked, told in turns:
            question = before + self._prompts.block("user", *asked) + self._prompts.block("assistant")
            answer = self._prompts.block("assistant", told)
            before = answer[-1:]  # generation ends before the newline
            ids += question + answer[:-1]
            labels += [IGNORED] * len(question) + answer[:-1]
        return ids, labels


def _content(text: str) -> Content:
    """A turn's text with placeholders for its images."""
    first, *others = text.split(TAG)
    parts: list[str | int] = [first]
    for part in others:
        parts += [IMAGE, part]
    return tuple(part for part in parts if part != "")
