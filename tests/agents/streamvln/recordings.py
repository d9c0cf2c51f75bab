"""The reference recordings of the published code, as the tests of the loop and of the samples read them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from torch import Tensor

from agents.common.decoders.loop import EpisodeLoop
from agents.common.towers.siglip import network_input, resize
from tests.agents.recorded import Recorded
from tests.agents.streamvln.frames import frame
from vlnbench.interfaces import Action, Observation

RUNS = (
    "main",
    "stop_mid_turn",
    "two_action_turns",
    "desync_three_action_turns",
    "no_action_text",
    "small_window",
)


@cache
def pixels(seed: int, episode: int, step: int) -> Tensor:
    """A frame as the network reads it, (1, 3, 384, 384)."""
    return network_input([resize(frame(seed, episode, step), 384)])


class Phrases(random.Random):
    """Draws the phrases that were recorded, then always the first."""

    def __new__(cls, run: Recorded) -> Phrases:  # which Python 3.10 would take for a seed
        return super().__new__(cls)

    def __init__(self, run: Recorded) -> None:
        super().__init__()
        self.recorded = iter([turn["phrase_index"] for turn in run.steps])

    def choice(self, options: Sequence[Any]) -> Any:
        return options[next(self.recorded, 0)]


def replay(
    loop: EpisodeLoop, runs: Mapping[int, Recorded], order: random.Random | None = None
) -> dict[int, list[Action]]:
    """Drive recorded episodes, one per slot, until STOP or their step limit; `order` shuffles the slots.

    Only frames that the loop has to look at are drawn, the others are absent.
    """
    for slot, run in runs.items():
        loop.reset(slot, run.task, seed=0)
        loop._slots[slot].rng = Phrases(run)
    taken: dict[int, list[Action]] = {slot: [] for slot in runs}
    running = list(runs)
    while running:
        if order is not None:
            order.shuffle(running)
        seen = {}
        for slot in running:
            step = len(taken[slot])
            needed = step % loop._windows.stride == 0 or not loop._slots[slot].queue
            rgb = runs[slot].rgb(step) if needed else None
            seen[slot] = Observation(runs[slot].task.instruction, step, rgb=rgb)
        for slot, action in loop.act(seen).items():
            taken[slot].append(action)
            if action is Action.STOP or len(taken[slot]) == runs[slot].episode["max_steps"]:
                running.remove(slot)
    return taken
