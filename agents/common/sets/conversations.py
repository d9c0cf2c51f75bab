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

from agents.common.sets.trajectories import BELOW, stays_below
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
_ROLES = ("human", "gpt")


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
