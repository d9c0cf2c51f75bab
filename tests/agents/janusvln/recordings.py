"""The reference recordings of the published code, as the tests of loop, decoder and training read them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.janusvln.agent import EpisodeLoop
from tests.agents.streamvln.frames import frame
from vlnbench.interfaces import Action, Episode, Observation


@cache
def recordings(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "traces.json").read_text())  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Recorded:
    """One episode of a recorded run with its steps."""

    settings: dict[str, Any]
    episode: dict[str, Any]
    steps: list[dict[str, Any]]

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

    def rgb(self, step: int) -> NDArray[np.uint8]:
        return frame(self.episode["frame_seed"], self.episode["frame_episode"], step)


def recorded(folder: Path, run: str) -> list[Recorded]:
    (found,) = (entry for entry in recordings(folder)["runs"] if entry["name"] == run)
    return [
        Recorded(
            found["settings"],
            episode,
            [step for step in found["steps"] if step["episode"] == episode["index"]],
        )
        for episode in found["episodes"]
    ]


def ids_of(runs: list[Any]) -> list[int]:
    """Ids written with repeats as pairs of id and count."""
    return [token for run in runs for token in ([run[0]] * run[1] if isinstance(run, list) else [run])]


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
