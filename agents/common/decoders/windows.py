"""How an episode is cut into windows, and which earlier frames a window remembers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vlnbench.errors import UsageError

if TYPE_CHECKING:
    from agents.common.decoders.sizes import WindowedSizes  # loads torch

PROMPT_TOKENS, TURN_TOKENS = 1024, 48  # generous: system, task and instruction text; text of one later turn


@dataclass(frozen=True, slots=True)
class Windows:
    """An episode in windows of `num_frames` steps, as StreamVLN is trained and run (arXiv 2507.05240).

    A window sees `num_history` frames of the whole past first, then one frame every `num_future_steps` steps (in
    evaluation: whenever the actions of the last answer are used up). Raises UsageError where the windows cannot
    be cut evenly, for then the published code mistakes memory frames for current ones.
    """

    num_frames: int = 32
    num_history: int = 8
    num_future_steps: int = 4

    def __post_init__(self) -> None:
        for name in ("num_history", "num_future_steps"):
            value = getattr(self, name)
            if value < 1 or self.num_frames % value:
                raise UsageError(f"{name} {value}: expected a divisor of num_frames, {self.num_frames}")

    @classmethod
    def of(cls, config: WindowedSizes, folder: Path) -> Windows:
        """The windows of the checkpoint in `folder`; it is named where they cannot be cut evenly."""
        try:
            return cls(config.num_frames, config.num_history, config.num_future_steps)
        except UsageError as error:
            raise UsageError(f"{folder}/config.json: {error}") from None

    @property
    def stride(self) -> int:
        """Steps between frames that can become memory: every boundary's memory steps are multiples of it."""
        return self.num_frames // self.num_history

    @property
    def turns(self) -> int:
        """Turns of a whole window, each with one frame."""
        return self.num_frames // self.num_future_steps

    @property
    def images(self) -> int:
        """Frames that a whole window shows, remembered ones and current ones."""
        return self.num_history + self.turns

    def boundary(self, step: int) -> int:
        """Step at which the window that holds `step` begins."""
        return step - step % self.num_frames

    def memory_steps(self, boundary: int) -> range:
        """Steps of the frames that the window beginning at `boundary` remembers, oldest first: none at 0."""
        return range(0, boundary, max(boundary // self.num_history, 1))


def window_tokens(config: WindowedSizes, steps_per_turn: int, answer: int) -> int:
    """Tokens of a window whose turns take `steps_per_turn` steps and answers of `answer` tokens."""
    turns = -(-config.num_frames // steps_per_turn)
    prompt = PROMPT_TOKENS + config.num_history * config.image_tokens
    tokens = prompt + turns * (config.image_tokens + TURN_TOKENS + answer)
    return min(tokens, config.max_position_embeddings)
