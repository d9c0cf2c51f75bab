"""The reference recordings of the published code, as the tests read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.agents.streamvln.frames import frame as wide


@cache
def traces(folder: Path) -> Any:
    return json.loads((folder / "traces.json").read_text())


@cache
def arrays(folder: Path) -> dict[str, NDArray[np.float32]]:
    with np.load(folder / "traces.npz") as found:
        return dict(found)


def run(folder: Path, name: str) -> Any:
    return next(each for each in traces(folder)["runs"] if each["name"] == name)


def frame(seed: int, episode: int, step: int) -> NDArray[np.uint8]:
    return wide(seed, episode, step, width=512, height=512)


def ids_of(pairs: Sequence[Sequence[int]]) -> list[int]:
    """Ids of [id, count]."""
    return [id_ for id_, count in pairs for _ in range(count)]
