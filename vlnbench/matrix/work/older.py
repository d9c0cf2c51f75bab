"""Matrices that were begun when trainings were hashed otherwise: their records read as if they were of today.

Format 1 hashed every option that there was, with its value. In formats 1 and 2 some inputs had a default, where
None now stands for what the checkpoint says (`TrainOptions.BEFORE`). What was recorded of a setting, its options,
says which setting of today it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.evaluation.records import SUMMARY
from vlnbench.matrix.fields import HASHED, convert, digest, hashed, types_of
from vlnbench.matrix.spec import Setting
from vlnbench.training.family.find import find_family, get_family
from vlnbench.training.family.sources import find_source
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.objectives import OBJECTIVES, get_objective
from vlnbench.training.options import TrainOptions

_OLDER = (1, 2)
"""Formats."""


def document_of_today(found: Mapping[str, Any]) -> dict[str, Any]:
    """A document of results as it would be written today.

    A row that today's options cannot describe keeps its key, which is none of today's.
    """
    if found.get("format") not in _OLDER:
        return dict(found)
    rows = []
    for row in found["rows"]:
        for trained, left in list(_today(row["options"]).items())[:1]:
            keys = {"train_key": trained, "key": digest([trained, row["evaluate"]])}
            row = {**row, **keys, "options": {**row["options"], **left}}
        rows.append(row)
    key = digest([[row["name"], row["key"]] for row in rows])
    return {**found, "format": HASHED, "key": key, "rows": rows}


def manifest_of_today(found: Mapping[str, Any], settings: Sequence[Setting], work: Path) -> dict[str, Any]:
    """The manifest of a work folder as it would be written today, as far as its settings are today's."""
    if found.get("format") not in _OLDER:
        return dict(found)
    before = keys_before(found, settings, work)
    known = {(work / "train" / trained).resolve().name for trained in before.values()}
    strange = {folder.name for folder in work.glob("train/*") if not folder.is_symlink()} - known
    now = {each.name: each.key for each in settings if each.name in before or not strange}
    entries = [{**entry, "key": now.get(entry["name"], entry["key"])} for entry in found["settings"]]
    return {**found, "format": HASHED, "settings": entries}


def keys_before(found: Mapping[str, Any], settings: Sequence[Setting], work: Path) -> dict[str, str]:
    """By the names of settings that were begun and are what they were: their trainings' hashes of then."""
    entries = {entry["name"]: entry for entry in found["settings"]}
    folders = [folder.name for folder in work.glob("train/*")]
    return {
        setting.name: trained
        for setting in settings
        if (entry := entries.get(setting.name)) and setting.train_key in _today(entry["options"])
        for trained in folders
        if digest([trained, setting.evaluate]) == entry["key"]
    }


def link_older(found: Mapping[str, Any], settings: Sequence[Setting], work: Path) -> None:
    """Let what a work folder of an older format holds be found under today's hashes: trainings, and evaluations.

    An evaluation that has begun and not ended is begun anew, since its run would name another checkpoint.
    """
    if found.get("format") not in _OLDER:
        return
    for name, trained in keys_before(found, settings, work).items():
        setting = next(each for each in settings if each.name == name)
        _link(work / "train", trained, setting.train_key)
        for split in setting.evaluate["splits"]:
            before = digest([trained, {**setting.evaluate, "splits": [split]}])
            if (work / "eval" / before / "run" / SUMMARY).is_file():
                _link(work / "eval", before, setting.eval_key(split))


def _link(folder: Path, target: str, name: str) -> None:
    if not os.path.lexists(folder / name):
        (folder / name).symlink_to(target, target_is_directory=True)


def _today(recorded: Mapping[str, Any]) -> dict[str, dict[str, None]]:
    """Today's hashes of a training by the options that were recorded, and which of them are not given then.

    What the checkpoint says may be given or not; the first hash is that where it is not. Empty where there is no
    such training now.
    """
    elsewhere = {name for each in OBJECTIVES.values() for name in types_of(each.training)}
    try:
        name, checkpoint = recorded.get("family"), str(recorded["checkpoint"])
        family = get_family(name) if name else find_family("", checkpoint).family
        kind = get_objective(recorded.get("objective", TrainOptions.objective)).train_options(
            family.check_training()
        )
        types = types_of(kind, without=("out",))
        # every training had the options of all objectives once
        dropped = {"out"} | (elsewhere - {*types})
        known = {option: value for option, value in recorded.items() if option not in dropped}
        options = kind(**convert(known, types, "recorded"), out=Path())
        own = _as_trained(options, family)
    except (UsageError, KeyError):
        return {}
    some = [each for size in range(len(own), -1, -1) for each in combinations(own, size)]
    left: list[dict[str, Any]] = [dict.fromkeys(each) for each in some]
    return {digest(hashed(replace(options, **each), family)): each for each in left}


def _as_trained(options: TrainOptions, family: FamilySpec) -> list[str]:
    """Options that had their default of then, which the checkpoint says too."""
    then = {name: value for name, value in options.BEFORE.items() if getattr(options, name) == value}
    if not then:
        return []
    bare: dict[str, Any] = dict.fromkeys(then)
    source = find_source(options.checkpoint, [family])
    own = family.load_checkpoints().settled(source, replace(options, **bare))
    return [name for name, value in then.items() if getattr(own, name) == value]
