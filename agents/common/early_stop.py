"""Where published evaluations end an episode by themselves: it takes too long, or gets nowhere."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from vlnbench.interfaces import Action, Observation


@dataclass
class EarlyStop:
    """Of one episode. Published programs look at the distance to the goal, and end where it stays the same.

    Whoever must not know that counts turns, and steps after which the frame is the same to the last bit.
    step_limit: the last step that is not a STOP. still_limit: so many such actions in a row are none yet, 0: no
    number is.
    """

    step_limit: int
    still_limit: int
    still: int = 0
    last: Action | None = None
    frame: int = 0

    def is_due(self, seen: Observation) -> bool:
        """Whether the next action is a STOP; asked once at every step."""
        before, self.frame = self.frame, 0 if seen.rgb is None else zlib.crc32(seen.rgb.tobytes())
        moved = self.last is None or (self.last is Action.MOVE_FORWARD and self.frame != before)
        self.still = 0 if moved else self.still + 1
        return seen.step > self.step_limit or 0 < self.still_limit < self.still
