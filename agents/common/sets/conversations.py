"""Folders of questions and answers about images, in the layout of LLaVA's training files.

`<folder>/conversations.json` lists records with `image`, the path of one image below the folder or a list of such,
and `conversations`, turns of "human" and "gpt" by turns. The first turn holds as many `<image>` tags as there are
images (LLaVA, arXiv 2304.08485).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agents.common.sets.records import Records
from vlnbench.data.sets import CONVERSATIONS, read_list
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action

TAG = "<image>"
SYMBOLS = {
    "STOP": Action.STOP,
    "↑": Action.MOVE_FORWARD,
    "←": Action.TURN_LEFT,
    "→": Action.TURN_RIGHT,
}
"""How answers write actions."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Image files, and (question, answer) of every turn; `TAG` in the first question stands for an image."""

    images: tuple[Path, ...]
    turns: tuple[tuple[str, str], ...]

    @property
    def length(self) -> tuple[int, int]:
        """Images and characters of text."""
        return self.length_of(None)

    def length_of(self, turns: int | None) -> tuple[int, int]:
        """Images, and characters of text of so many turns on average; None: of all of them."""
        text = sum(len(text) for turn in self.turns for text in turn)
        return len(self.images), text if turns is None else text * min(turns, len(self.turns)) // len(self.turns)

    def drawn(self, turns: int, rng: random.Random) -> Conversation:
        """So many of the turns at most, in any order; the first one shows the images."""
        chosen = rng.sample(range(len(self.turns)), min(turns, len(self.turns)))
        return self._of(chosen)

    def alone(self) -> list[Conversation]:
        """Every turn by itself, with the images."""
        return [self._of([place]) for place in range(len(self.turns))]

    def _of(self, places: Sequence[int]) -> Conversation:
        """Some of the turns; the first of them shows the images."""
        shown, question = _apart(self.turns[0][0])
        bare = ((question, self.turns[0][1]), *self.turns[1:])
        (first, answer), *others = (bare[place] for place in places)
        return replace(self, turns=((shown + first, answer), *others))


def _apart(question: str) -> tuple[str, str]:
    """A first question's images, and the question."""
    end = question.rindex(TAG) + len(TAG)
    end += question[end : end + 1] == "\n"
    return question[:end], question[end:]


def read_conversations(folder: Path) -> list[Conversation]:
    """The conversations of a folder in order. Every image is looked for.

    Raises UsageError for records that break the format and for images that are missing, with their number.
    """
    path = folder / CONVERSATIONS
    found = read_list(path, "conversations", f"expected a folder of conversations with {CONVERSATIONS}")
    records = Records(path, folder)
    conversations = [_conversation(records, index, record) for index, record in enumerate(found)]
    images = list(dict.fromkeys(image for each in conversations for image in each.images))
    missing = [image for image in images if not image.is_file()]
    if missing:
        raise UsageError(
            f"{path}: {len(missing)} of {len(images)} images are missing, first {missing[0]}; extract the image "
            "archives completely"
        )
    return conversations


def _conversation(records: Records, number: int, record: Any) -> Conversation:
    record = records.fields(number, record, " with image and conversations")
    images = record.get("image")
    images = [images] if isinstance(images, str) else images
    if not isinstance(images, list) or not images or not all(isinstance(name, str) and name for name in images):
        raise records.fail(number, "image", "the path of an image or a list of paths")
    paths = tuple(records.root / records.below(number, "image", name) for name in images)
    pairs = records.turns(number, record.get("conversations"))
    tags = [text.count(TAG) for turn in pairs for text in turn]
    if tags[0] != len(images) or any(tags[1:]):
        expected = f"{TAG} in the first turn once for each of {len(images)} images, nowhere else"
        raise records.fail(number, "conversations", expected)
    return Conversation(paths, pairs)
