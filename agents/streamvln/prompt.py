"""The text side of StreamVLN: prompts as token ids, and answers as actions.

The strings are part of the trained weights' format (StreamVLN, arXiv 2507.05240; chat blocks of Qwen2) and must
not be improved. The model writes the header of its answer itself: a prompt ends with an empty assistant block, and
the next turn continues after the tokens of the answer with no newline between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from transformers import Qwen2TokenizerFast  # type: ignore[attr-defined]  # there, but made at run time

from agents.streamvln.config import read_json
from agents.streamvln.model import IMAGE, MEMORY
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

SYMBOLS = {
    "STOP": Action.STOP,
    "↑": Action.MOVE_FORWARD,
    "←": Action.TURN_LEFT,
    "→": Action.TURN_RIGHT,
}
_SYMBOL = re.compile("|".join(SYMBOLS))
_BLOCK_START, _BLOCK_END = "<|im_start|>", "<|im_end|>"

Content = tuple["str | int", ...]
"""What a chat block holds: text and placeholder ids."""


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str: ...

    def __len__(self) -> int: ...


def load_tokenizer(folder: Path) -> Tokenizer:
    """The Qwen2 tokenizer in `folder`. Raises UsageError if its files are missing, broken or another's."""
    whole = (folder / "tokenizer.json").is_file()
    for name in ("tokenizer_config.json", *(["tokenizer.json"] if whole else ["vocab.json", "merges.txt"])):
        path = folder / name
        if not path.is_file():
            raise UsageError(
                f"{folder}: no tokenizer ({name} is missing); name a folder that has one with --tokenizer, such "
                "as that of LLaVA-Video-7B-Qwen2"
            )
        if path.suffix == ".json":
            read_json(path)
    try:
        tokenizer: Tokenizer = Qwen2TokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the Rust tokenizer raises nothing more specific
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{folder}: tokenizer cannot be read ({reason})") from error
    for text in (_BLOCK_START, _BLOCK_END, "\n", *SYMBOLS):
        if len(tokenizer.encode(text, add_special_tokens=False)) != 1:
            raise UsageError(
                f"{folder}: tokenizer has no token {text!r}; expected the Qwen2 tokenizer of the checkpoint"
            )
    return tokenizer


class Prompts:
    """Writes prompts and reads answers with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def opening(self, instruction: str, phrase: str, *, memory: bool) -> list[int]:
        """Token ids of the first turn of a window: system block, task, memory if there is any, current frame."""
        sentence: Content = (" These are your historical observations ", MEMORY, ".") if memory else ()
        user = self.block("user", task_text(instruction), *sentence, " ", *view(phrase))
        return self.block("system", SYSTEM) + user + self.block("assistant")

    def following(self, answer: Sequence[int], phrase: str) -> list[int]:
        """Token ids of a later turn: the answer before it exactly as generated, then the current frame."""
        return [*answer, *self.block("user", *view(phrase)), *self.block("assistant")]

    def actions(self, answer: Sequence[int]) -> list[Action]:
        """The actions that an answer names, in order; a single STOP if it names none."""
        text = self._tokenizer.decode(answer, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return [SYMBOLS[symbol] for symbol in _SYMBOL.findall(text)] or [Action.STOP]

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
        ids = [self._encode(symbol) for symbol in SYMBOLS]
        pairs = [(first, second) for first in SYMBOLS for second in SYMBOLS]
        alone = all(len(each) == 1 for each in ids)
        if not alone or any(len(self._encode(first + second)) != 2 for first, second in pairs):
            raise UsageError(
                "the tokenizer does not write every action as one token: weigh all alike, and leave no strays out"
            )
        return frozenset(each[0] for each in ids)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


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
