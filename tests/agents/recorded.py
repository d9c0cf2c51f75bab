"""What tests against recordings of published programs share: the recordings, and one thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.agents.streamvln.frames import frame
from vlnbench.interfaces import Episode
from vlnbench.training.family.spec import FamilySpec


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """As the recordings were made; and models this small only lose by sharing their work out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def goldens_of(name: str) -> Callable[[Path], Path]:
    """A fixture: recordings of the published code, with the small checkpoint they were made with."""

    @pytest.fixture(scope="session")
    def goldens(shared: Path) -> Path:
        return shared / "goldens" / name

    return goldens


def base_of(spec: FamilySpec) -> Callable[[pytest.TempPathFactory], Path]:
    """A fixture: the folder of a family's first preset, with random weights."""

    @pytest.fixture(scope="session")
    def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp(spec.name) / "base"
        texts = ["Walk past the sofa and stop at the door."]
        spec.load_checkpoints().create(spec.presets[0], folder, texts, seed=0)
        return folder

    return base


@cache
def traces(goldens: Path) -> Any:
    return json.loads((goldens / "traces.json").read_text())


@cache
def arrays(goldens: Path) -> dict[str, NDArray[np.float32]]:
    with np.load(goldens / "traces.npz") as found:
        return dict(found)


def run(goldens: Path, name: str) -> Any:
    return next(each for each in traces(goldens)["runs"] if each["name"] == name)


def whole(pairs: Sequence[Any]) -> list[int]:
    """Ids of ids and [id, count]."""
    counted = (each if isinstance(each, list) else [each, 1] for each in pairs)
    return [id_ for id_, count in counted for _ in range(count)]


@dataclass(frozen=True)
class Recorded:
    """One episode of a recorded run with its steps, of StreamVLN its turns."""

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


def recorded(folder: Path, name: str) -> list[Recorded]:
    found = run(folder, name)
    steps = found.get("turns") or found["steps"]
    return [
        Recorded(found["settings"], episode, [step for step in steps if step["episode"] == episode["index"]])
        for episode in found["episodes"]
    ]
