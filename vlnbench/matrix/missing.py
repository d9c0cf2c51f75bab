"""What of a matrix's data and checkpoints is not there, by setting: said before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from vlnbench.data.trajectory_sets import without_frames
from vlnbench.errors import UsageError
from vlnbench.matrix.spec import Matrix, Setting
from vlnbench.training.options import parse_set

NAMED = 3
"""How many settings a line names."""


def check_nothing_is_missing(matrix: Matrix, settings: Iterable[Setting]) -> None:
    """Raise UsageError, before hours of other work, where settings would be trained on walks without frames."""
    if lines := missing(settings):
        raise UsageError(f"{matrix.path}: {'; '.join(lines)}")


def missing(settings: Iterable[Setting]) -> list[str]:
    """What is not there, a line each with the settings that need it; but for sets that will be collected."""
    look = cache(_lack)
    wanting: dict[str, list[str]] = {}
    settings = list(settings)
    for setting in settings:
        if setting.train.learns_from == "walks":
            continue
        for folder in _folders(setting):
            if lack := look(folder):
                wanting.setdefault(lack, []).append(setting.name)
    return [
        f"{lack} (needed by {len(names)} of {len(settings)} settings: {', '.join(map(repr, names[:NAMED]))}"
        f"{', ...' * (len(names) > NAMED)})"
        for lack, names in wanting.items()
    ]


def _lack(folder: Path) -> str:
    try:
        return without_frames(folder)
    except UsageError:  # broken: its training says so
        return ""


def _folders(setting: Setting) -> list[Path]:
    options = setting.train
    counted = (parse_set(text)[0] for text in options.steps_of)
    return [options.trajectories / name for name in dict.fromkeys([*options.mixture, *counted])]
