"""The text side of StreamVLN: prompts as token ids, and answers as actions.

The strings are part of the trained weights' format (StreamVLN, arXiv 2507.05240; chat blocks of Qwen2) and must
not be improved. The model writes the header of its answer itself: a prompt ends with an empty assistant block, and
the next turn continues after the tokens of the answer with no newline between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from agents.common.checkpoints import tokenizer
from agents.common.checkpoints.tokenizer import Tokenizer
from agents.common.sets.conversations import SYMBOLS
from agents.streamvln.network import IMAGE, MEMORY
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action

SYSTEM = "You are a helpful assistant."
PHRASES = (
    "you can see ",
    "in front of you is ",
    "there is ",
    "you can spot ",
    "you are toward the ",
    "ahead of you is ",
    "in your sight is ",
)
"""What may introduce a frame; one is drawn for every turn."""

_SYMBOL = re.compile("|".join(SYMBOLS))
_BLOCK_START, _BLOCK_END = "<|im_start|>", "<|im_end|>"

MOST_ENCODED = 10_000
"""Texts whose ids are kept: a training asks for the same answers and instructions again and again."""

Content = tuple["str | int", ...]
"""What a chat block holds: text and placeholder ids."""


def load_tokenizer(folder: Path) -> Tokenizer:
    """The Qwen2 tokenizer in `folder`. Raises UsageError if its files are missing, broken or another's."""
    return tokenizer.load_tokenizer(folder, (_BLOCK_START, _BLOCK_END, "\n", *SYMBOLS), "LLaVA-Video-7B-Qwen2")


class Prompts:
    """Writes prompts and reads answers with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}
        self._encoded: dict[str, list[int]] = {}

    def opening(self, instruction: str, phrase: str, *, memory: bool) -> list[int]:
        """Token ids of the first turn of a window: system block, task, memory if there is any, current frame."""
        sentence: Content = (" These are your historical observations ", MEMORY, ".") if memory else ()
        user = self.block("user", task_text(instruction), *sentence, " ", *view(phrase))
        return self.block("system", SYSTEM) + user + self.block("assistant")

    def following(self, answer: Sequence[int], phrase: str) -> list[int]:
        """Token ids of a later turn: the answer before it exactly as generated, then the current frame."""
        if phrase not in self._known:  # there are a few phrases, and a turn for every fourth step
            self._known[phrase] = [*self.block("user", *view(phrase)), *self.block("assistant")]
        return [*answer, *self._known[phrase]]

    def actions(self, answer: Sequence[int]) -> list[Action]:
        """The actions that an answer names, in order; a single STOP if it names none."""
        text = self._tokenizer.decode(answer, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return [SYMBOLS[symbol] for symbol in _SYMBOL.findall(text)] or [Action.STOP]

    def reworded(self, answer: Sequence[int], actions: Sequence[Action]) -> list[int]:
        """An answer that names other actions instead, between the words that stand around its own.

        Where it names none, they come before its last token. Raises UsageError as `symbol_ids` does.
        """
        ids = self.action_ids()
        places = [place for place, id_ in enumerate(answer) if id_ in ids] or [len(answer) - 1]
        named = {action: id_ for id_, action in ids.items()}
        after = places[-1] + (answer[places[-1]] in ids)
        return [*answer[: places[0]], *(named[action] for action in actions), *answer[after:]]

    def block(self, role: str, *content: str | int) -> list[int]:
        """Token ids of one chat block; numbers in the content are placeholders and stay as they are."""
        ids: list[int] = []
        text = f"{_BLOCK_START}{role}\n"
        for part in (*content, f"{_BLOCK_END}\n"):
            if isinstance(part, str):
                text += part
            else:
                ids += [*self._encode(text), part]
                text = ""
        return ids + self._encode(text)

    def block_marks(self) -> frozenset[int]:
        """Ids that training supervises in every block: the block's two marks and the newline."""
        return frozenset(self._encode(f"{_BLOCK_START}{_BLOCK_END}\n"))

    def symbol_ids(self) -> frozenset[int]:
        """Ids of the actions. Raises UsageError where an action, or several in a row, are not one token each."""
        return frozenset(self.action_ids())

    def action_ids(self) -> dict[int, Action]:
        """The actions by their ids. Raises UsageError as `symbol_ids` does."""
        ids = [self._encode(symbol) for symbol in SYMBOLS]
        pairs = [(first, second) for first in SYMBOLS for second in SYMBOLS]
        alone = all(len(each) == 1 for each in ids)
        if not alone or any(len(self._encode(first + second)) != 2 for first, second in pairs):
            raise UsageError(
                "the tokenizer does not write every action as one token: weigh all alike, and leave no strays out"
            )
        return {each[0]: action for each, action in zip(ids, SYMBOLS.values(), strict=True)}

    def _encode(self, text: str) -> list[int]:
        known = self._encoded.get(text)
        if known is None:
            known = self._tokenizer.encode(text, add_special_tokens=False)
            if len(self._encoded) < MOST_ENCODED:
                self._encoded[text] = known
        return known.copy()


def task_text(instruction: str) -> str:
    """The task as the first user block of a window states it; the instruction goes in as it is."""
    return (
        f"You are an autonomous navigation assistant. Your task is to {instruction} Devise an action sequence to "
        "follow the instruction using the four actions: TURN LEFT (←) or TURN RIGHT (→) by 15 degrees, MOVE "
        "FORWARD (↑) by 25 centimeters, or STOP."
    )


def view(phrase: str) -> Content:
    """How a turn shows its frame."""
    return (phrase, IMAGE, ".")
