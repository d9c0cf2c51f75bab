"""The text side of Qwen2.5-VL: the question of the agent `openai` as a chat's token ids, answers as actions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

from agents.common.answers.names import AS_TEXT, NAMES, read_answer
from agents.common.checkpoints.tokenizer import Tokenizer
from agents.common.prompts.navigation import Template, read_template
from agents.common.qwen2_5_vl.tokens import BLOCK_END, IMAGE, SHOWN, chat
from vlnbench.interfaces import Action

SYSTEM = "You are a helpful assistant."
TAGGED = (
    "First think between <think> and </think>, then give the names of the actions "
    f"({', '.join(NAMES)}), separated by spaces, between <answer> and </answer>."
)
Answers = Literal["plain", "tagged"]

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@dataclass(frozen=True)
class Wording:
    """How a question is put: prompt file (None: the shared one), actions per answer, form of answers, turns."""

    prompt: Path | None = None
    actions_per_answer: int = 4
    answers: Answers = "plain"
    turn_deg: float = 15.0


def _sequences(longest: int) -> Iterator[tuple[Action, ...]]:
    """All answers of up to so many actions; nothing follows a STOP."""
    moves = [action for action in NAMES.values() if action is not Action.STOP]
    for length in range(longest):
        for before in product(moves, repeat=length):
            for last in NAMES.values():
                yield (*before, last)


class Prompts:
    """Writes questions and reads answers with one tokenizer. Raises UsageError for a prompt that is none."""

    def __init__(self, tokenizer: Tokenizer, wording: Wording) -> None:
        self._tokenizer, self.wording = tokenizer, wording
        self.template = Template(read_template(wording.prompt), wording.actions_per_answer, wording.turn_deg)

    def question(self, instruction: str, done: Sequence[Action], earlier: int) -> list[int]:
        """Token ids that ask for the next actions, a placeholder for each of `earlier` frames and the current.

        Raises ValueError where the instruction holds a placeholder itself.
        """
        tagged = self.wording.answers == "tagged"
        text = self.template.question(instruction, done, earlier, TAGGED if tagged else AS_TEXT)
        ids = self._encode(chat(("system", SYSTEM), ("user", text + SHOWN * (earlier + 1))))
        (image,) = self._encode(IMAGE)
        if ids.count(image) != earlier + 1:
            raise ValueError(f"the instruction holds {IMAGE}, which stands for an image")
        return ids

    def answer(self, actions: Sequence[Action]) -> list[int]:
        """Token ids of an answer with these actions and its end."""
        names = " ".join(action.name for action in actions)
        tagged = self.wording.answers == "tagged"
        return self._encode((f"<answer>{names}</answer>" if tagged else names) + BLOCK_END)

    def read(self, answer: Sequence[int]) -> list[Action] | None:
        """The actions of an answer, None where it cannot be read. What is before <answer> tags does not count."""
        text = self._tokenizer.decode(answer, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if self.wording.answers == "tagged":
            found = _ANSWER.findall(text)
            if not found:
                return None
            text = found[-1]
        try:
            return read_answer(text, self.wording.actions_per_answer)
        except ValueError:
            return None

    def allowed(self) -> Callable[[Sequence[int]], Sequence[int]]:
        """Tokens that may follow the beginning of an answer, if it is to be one of those that can be read."""
        following: dict[tuple[int, ...], set[int]] = {}
        for ids in map(self.answer, _sequences(self.wording.actions_per_answer)):
            for place, id_ in enumerate(ids):
                following.setdefault(tuple(ids[:place]), set()).add(id_)
        found = {before: sorted(after) for before, after in following.items()}
        return lambda answer: found.get(tuple(answer), [])

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)
