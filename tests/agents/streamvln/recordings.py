"""The reference recordings of the published code, as the tests of the loop and of the samples read them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agents.common.decoders.loop import EpisodeLoop
from tests.agents.streamvln.frames import frame
from vlnbench.interfaces import Action, Episode, Observation

RUNS = (
    "main",
    "stop_mid_turn",
    "two_action_turns",
    "desync_three_action_turns",
    "no_action_text",
    "small_window",
)


@cache
def recordings(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "traces.json").read_text())  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Recorded:
    """One episode of a recorded run with its turns."""

    settings: dict[str, Any]
    episode: dict[str, Any]
    turns: list[dict[str, Any]]

    @property
    def task(self) -> Episode:
        return Episode(
            episode_id=self.episode["id"],
            trajectory_id="0",
            scene_id=self.episode["scene"],
            start_position=(0.0, 0.0, 0.0),
            start_rotation=(0.0, 0.0, 0.0, 1.0),
            instruction=self.episode["instruction"],
        )


def recorded(folder: Path, run: str) -> list[Recorded]:
    (found,) = (entry for entry in recordings(folder)["runs"] if entry["name"] == run)
    return [
        Recorded(
            found["settings"],
            episode,
            [turn for turn in found["turns"] if turn["episode"] == episode["index"]],
        )
        for episode in found["episodes"]
    ]


class Phrases(random.Random):
    """Draws the phrases that were recorded, then always the first."""

    def __init__(self, run: Recorded) -> None:
        super().__init__()
        self.recorded = iter([turn["phrase_index"] for turn in run.turns])

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
            step, episode = len(taken[slot]), runs[slot].episode
            needed = step % loop._windows.stride == 0 or not loop._slots[slot].queue
            rgb = frame(episode["frame_seed"], episode["frame_episode"], step) if needed else None
            seen[slot] = Observation(runs[slot].task.instruction, step, rgb=rgb)
        for slot, action in loop.act(seen).items():
            taken[slot].append(action)
            if action is Action.STOP or len(taken[slot]) == runs[slot].episode["max_steps"]:
                running.remove(slot)
    return taken
