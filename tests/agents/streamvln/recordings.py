"""The reference recordings of the published code, as the tests of the loop and of the samples read them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vlnbench.interfaces import Episode

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
    first_turn: int
    """Turns of the run before this episode: that many phrases were drawn already."""

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
    result, before = [], 0
    for episode in found["episodes"]:
        turns = [turn for turn in found["turns"] if turn["episode"] == episode["index"]]
        result.append(Recorded(found["settings"], episode, turns, before))
        before += len(turns)
    return result
