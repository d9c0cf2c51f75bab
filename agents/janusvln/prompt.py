"""The text side of JanusVLN: prompts as token ids, and answers as actions.

The strings are part of the trained weights' format (JanusVLN, arXiv 2509.22548; chat blocks of Qwen2.5-VL) and
must not be improved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agents.common.checkpoints.tokenizer import Tokenizer
from agents.common.qwen2_5_vl.tokens import BLOCK_END, IMAGE, SHOWN, chat
from vlnbench.interfaces import Action

SYSTEM = (
    "You are a visual language navigation model, and your should go to the locations to complete the given task. "
    "Compare the observation and instruction to infer your current progress, and then select the correct "
    "direction from the candidates to go to the target location and finish the task."
)
LABELS = {
    action.name: action for action in (Action.STOP, Action.MOVE_FORWARD, Action.TURN_LEFT, Action.TURN_RIGHT)
}
"""What an answer may say."""


class Prompts:
    """Writes prompts and reads answers with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def question(self, instruction: str, images: int) -> list[int]:
        """Token ids that ask for the next action, with one placeholder for each of `images` images.

        The instruction goes in as it is, not stripped. Raises ValueError where it holds a placeholder itself.
        """
        return self._asked(question_text(instruction, images), images)

    def lesson(self, instruction: str, images: int) -> list[int]:
        """The same as the published training asks."""
        return self._asked(lesson_text(instruction, images), images)

    def answer(self, label: str) -> list[int]:
        """Token ids of an answer with the end of its block and the line break behind it."""
        return self._tokenizer.encode(f"{label}{BLOCK_END}\n", add_special_tokens=False)

    def _asked(self, text: str, images: int) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        (image,) = self._tokenizer.encode(IMAGE, add_special_tokens=False)
        if ids.count(image) != images:
            raise ValueError(f"the instruction holds {IMAGE}, which stands for an image")
        return ids

    def text(self, answer: Sequence[int]) -> str:
        """What an answer says. One of `LABELS`, to the letter, is that action; anything else is STOP."""
        return self._tokenizer.decode(answer, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def lesson_text(instruction: str, images: int) -> str:
    """The chat of the published training up to where the model answers, which is not that of its evaluation.

    Its code drops the line break behind an image.
    """
    earlier = SHOWN * (images - 1) or "\n"
    told = (
        f"{SYSTEM}\n This is your historical observation:{earlier}"
        f" This is your current observation:{SHOWN} Your task is to {instruction}\n"
        " You should take one of the following actions:\n MOVE_FORWARD\n TURN_LEFT\n TURN_RIGHT\n STOP."
    )
    return chat(("system", "You are a helpful assistant."), ("user", told))


def question_text(instruction: str, images: int) -> str:
    """The chat up to where the model answers: images from the oldest to the current one, then the text."""
    task = (
        "These images are your historical observations and your current observation.\n"
        f" Your task is to {instruction} \n You should take one of the following actions:\n"
        " MOVE_FORWARD\n TURN_LEFT\n TURN_RIGHT\n STOP."
    )
    return chat(("system", SYSTEM), ("user", SHOWN * images + task))


def shown_steps(current: int, num_history: int) -> list[int]:
    """Which frames a question shows, the current one last: all where there are few, else `num_history` + 1 evenly
    spaced ones from the first to the current."""
    if current <= num_history:
        return list(range(current + 1))
    steps: list[int] = np.linspace(0, current, num_history + 1, dtype=int).tolist()
    return steps
