"""What of a matrix's data and checkpoints is not there, by setting: said before anything is trained."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from functools import cache, partial
from pathlib import Path

from vlnbench.data.trajectory_sets import set_file, without_frames
from vlnbench.errors import UsageError
from vlnbench.matrix.fields import checked
from vlnbench.matrix.spec import Matrix, Setting
from vlnbench.training.family.sources import find_source
from vlnbench.training.options import TrainOptions, parse_set
from vlnbench.util import hub

NAMED = 3
"""How many settings a line names."""


def check_nothing_is_missing(matrix: Matrix, settings: Iterable[Setting]) -> None:
    """Raise UsageError, before hours of other work, where something is missing that settings train from."""
    if lines := missing(matrix, settings):
        raise UsageError(f"{matrix.path}: {'; '.join(lines)}")


def check_inputs(matrix: Matrix, settings: Iterable[Setting]) -> None:
    """Raise UsageError for options of what a network sees that do not go with what its checkpoint says."""
    for setting in {each.train_key: each for each in settings}.values():
        options, source = setting.train, setting.source
        if source and any(getattr(options, name) is not None for name in options.INPUTS):
            settle = setting.family.load_checkpoints().settled  # loads torch
            checked(partial(settle, source, options), f"{matrix.path}: setting {setting.name!r}")


def missing(matrix: Matrix, settings: Iterable[Setting] | None = None) -> list[str]:
    """What is not there, a line each with the settings that need it; but for sets that will be collected.

    settings: those that are looked at, by default all.
    """
    look = cache(_lack)
    wanting: dict[str, list[str]] = {}
    settings = list(matrix.settings if settings is None else settings)
    for setting in settings:
        lacks = [_checkpoint(setting)]
        if setting.train.learns_from != "walks":
            options, files = setting.train, setting.family.set_files
            for name in _sets(options):
                folder = Path(os.path.normpath(options.trajectories / name))  # of ../dagger_data/R2R
                lacks.append(look(folder, files, name in matrix.collect))
        for lack in filter(None, lacks):
            wanting.setdefault(lack, []).append(setting.name)
    return [
        f"{lack} (needed by {len(names)} of {len(settings)} settings: {', '.join(map(repr, names[:NAMED]))}"
        f"{', ...' * (len(names) > NAMED)})"
        for lack, names in wanting.items()
    ]


def _checkpoint(setting: Setting) -> str:
    """What of the checkpoint that a setting starts from is not there; of one on the hub nothing is known."""
    named = setting.train.checkpoint
    try:
        source = setting.source or find_source(named, [setting.family])
    except UsageError:
        return f"checkpoint {named} is not there"
    if source.path is None or hub.PREFIX in source.name:
        return ""
    try:
        checkpoints = setting.family.load_checkpoints()
        checkpoints.check_files(source.path, checkpoints.settled(source, setting.train))
    except UsageError as error:
        return str(error)
    return ""


def _lack(folder: Path, files: Collection[str], collected: bool) -> str:
    try:
        if set_file(folder, files) is None:
            return "" if collected else f"{folder} is not there: get it (`vlnbench data fetch`), or collect it"
        return without_frames(folder)
    except UsageError:  # broken: its training says so
        return ""


def _sets(options: TrainOptions) -> list[str]:
    counted = (parse_set(text)[0] for text in options.steps_of)
    return list(dict.fromkeys([*options.mixture, *counted]))
