"""Chat blocks of Qwen2 as token ids, and answers in them that are actions, a symbol each."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agents.common.checkpoints.new_tokenizer import BLOCK_END, BLOCK_START
from agents.common.checkpoints.tokenizer import Tokenizer
from agents.common.sets.conversations import SYMBOLS
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action

_SYMBOL = re.compile("|".join(SYMBOLS))

MOST_ENCODED = 10_000
"""Texts whose ids are kept: a training asks for the same answers and instructions again and again."""

Content = tuple["str | int", ...]
"""What a chat block holds: text and placeholder ids."""


class Chat:
    """Writes blocks and reads answers with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._encoded: dict[str, list[int]] = {}

    def block(self, role: str, *content: str | int) -> list[int]:
        """Token ids of one chat block; numbers in the content are placeholders and stay as they are."""
        ids: list[int] = []
        text = f"{BLOCK_START}{role}\n"
        for part in (*content, f"{BLOCK_END}\n"):
            if isinstance(part, str):
                text += part
            else:
                ids += [*self._encode(text), part]
                text = ""
        return ids + self._encode(text)

    def block_marks(self) -> frozenset[int]:
        """Ids that training supervises in every block: the block's two marks and the newline."""
        return frozenset(self._encode(f"{BLOCK_START}{BLOCK_END}\n"))

    def actions(self, answer: Sequence[int]) -> list[Action]:
        """The actions that an answer names, in order; a single STOP if it names none."""
        return self.read(answer) or [Action.STOP]

    def read(self, answer: Sequence[int]) -> list[Action] | None:
        """The actions that an answer names, None if it names none."""
        return [SYMBOLS[symbol] for symbol in _SYMBOL.findall(self.text(answer))] or None

    def text(self, answer: Sequence[int]) -> str:
        """An answer in words and symbols, with the marks of its block."""
        return self._tokenizer.decode(answer, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def reworded(self, answer: Sequence[int], actions: Sequence[Action]) -> list[int]:
        """An answer that names other actions instead, between the words that stand around its own.

        Where it names none, they come before its last token. Raises UsageError as `action_ids` does.
        """
        ids = self.action_ids()
        places = [place for place, id_ in enumerate(answer) if id_ in ids] or [len(answer) - 1]
        named = {action: id_ for id_, action in ids.items()}
        after = places[-1] + (answer[places[-1]] in ids)
        return [*answer[: places[0]], *(named[action] for action in actions), *answer[after:]]

    def action_ids(self) -> dict[int, Action]:
        """The actions by their ids. Raises UsageError where actions, alone or in a row, are not one token each."""
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
