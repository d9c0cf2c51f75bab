"""Folders of questions and answers about images, in the layout of LLaVA's training files.

`<folder>/conversations.json` lists records with `image`, the path of one image below the folder or a list of such,
and `conversations`, turns of "human" and "gpt" by turns. The first turn holds as many `<image>` tags as there are
images (LLaVA, arXiv 2304.08485).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.common.trajectories import BELOW, stays_below
from agents.streamvln.network.model import IGNORED, IMAGE
from agents.streamvln.prompt import SYSTEM, Content, Prompts
from agents.streamvln.training.samples import FrameReader, Sample, Wording
from vlnbench.data.sets import read_list
from vlnbench.errors import UsageError

CONVERSATIONS = "conversations.json"
TAG = "<image>"
_ROLES = ("human", "gpt")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Image files, and (question, answer) of every turn; `TAG` in the first question stands for an image."""

    images: tuple[Path, ...]
    turns: tuple[tuple[str, str], ...]

    @property
    def length(self) -> tuple[int, int]:
        """Images and characters of text."""
        return len(self.images), sum(len(text) for turn in self.turns for text in turn)


def read_conversations(folder: Path) -> list[Conversation]:
    """The conversations of a folder in order. Every image is looked for.

    Raises UsageError for records that break the format and for images that are missing, with their number.
    """
    path = folder / CONVERSATIONS
    records = read_list(path, "conversations", f"expected a folder of conversations with {CONVERSATIONS}")
    conversations = [_conversation(path, index, record) for index, record in enumerate(records)]
    images = list(dict.fromkeys(image for each in conversations for image in each.images))
    missing = [image for image in images if not image.is_file()]
    if missing:
        raise UsageError(
            f"{path}: {len(missing)} of {len(images)} images are missing, first {missing[0]}; extract the image "
            "archives completely"
        )
    return conversations


def _conversation(path: Path, index: int, record: Any) -> Conversation:
    def fail(name: str, expected: str) -> UsageError:
        return UsageError(f"{path}: record {index}: field {name!r}: expected {expected}")

    if not isinstance(record, dict):
        raise UsageError(f"{path}: record {index}: expected an object with image and conversations")
    images, turns = record.get("image"), record.get("conversations")
    images = [images] if isinstance(images, str) else images
    if not isinstance(images, list) or not images or not all(isinstance(name, str) and name for name in images):
        raise fail("image", "the path of an image or a list of paths")
    outside = next((name for name in images if not stays_below(name)), None)
    if outside is not None:
        raise fail("image", f"{BELOW}, found {outside!r}")
    if not isinstance(turns, list) or not turns or len(turns) % 2:
        raise fail("conversations", "turns of human and gpt by turns")
    for number, turn in enumerate(turns):
        role = _ROLES[number % 2]
        if not isinstance(turn, dict) or turn.get("from") != role or not isinstance(turn.get("value"), str):
            raise fail(f"conversations[{number}]", f'an object with "from": "{role}" and a text as value')
    texts = [turn["value"] for turn in turns]
    tags = [text.count(TAG) for text in texts]
    if tags[0] != len(images) or any(tags[1:]):
        raise fail("conversations", f"{TAG} in the first turn once for each of {len(images)} images, nowhere else")
    pairs = tuple(zip(texts[::2], texts[1::2], strict=True))
    return Conversation(tuple(path.parent / name for name in images), pairs)


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
    ) -> None:
        self._conversations = conversations
        self._prompts = prompts
        self._frames = frames
        self._write = self._as_evaluated if wording == "evaluation" else self._as_published
        self._marks = prompts.block_marks()

    def __len__(self) -> int:
        return len(self._conversations)

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Build one sample; `rng` draws the images' jitter."""
        conversation = self._conversations[index]
        input_ids, labels = self._write([(_content(asked), told) for asked, told in conversation.turns])
        files = conversation.images
        images = self._frames.shown(index, range(len(files)), lambda: files, rng)
        return Sample(input_ids, labels, images, 0, range(0))

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
