"""The reference recordings of the published code, as the tests of loop, decoder and training read them."""

from __future__ import annotations

import random
from collections.abc import Mapping

from agents.janusvln.agent import EpisodeLoop
from tests.agents.recorded import Recorded
from vlnbench.interfaces import Action, Observation


def replay(
    loop: EpisodeLoop, runs: Mapping[int, Recorded], order: random.Random | None = None, limit: int = 10**6
) -> dict[int, list[Action]]:
    """Drive recorded episodes, one per slot, until STOP or `limit` steps; `order` shuffles the slots."""
    for slot, run in runs.items():
        loop.reset(slot, run.task, seed=0)
    taken: dict[int, list[Action]] = {slot: [] for slot in runs}
    running = list(runs)
    while running:
        if order is not None:
            order.shuffle(running)
        seen = {slot: len(taken[slot]) for slot in running}
        observed = {
            slot: Observation(runs[slot].task.instruction, step, rgb=runs[slot].rgb(step))
            for slot, step in seen.items()
        }
        for slot, action in loop.act(observed).items():
            taken[slot].append(action)
            if action is Action.STOP or len(taken[slot]) == limit:
                running.remove(slot)
    return taken
