"""Matrices that were begun when trainings were hashed otherwise: their records read as if they were of today.

Format 1 hashed every option that there was, with its value. What it recorded of a setting, its options, says which
setting of today it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.evaluation.records import SUMMARY
from vlnbench.matrix.fields import convert, digest, hashed, types_of
from vlnbench.matrix.spec import Setting
from vlnbench.training.family.find import find_family, get_family
from vlnbench.training.objectives import OBJECTIVES, get_objective
from vlnbench.training.options import TrainOptions


def document_of_today(found: Mapping[str, Any]) -> dict[str, Any]:
    """A document of results as it would be written today.

    A row that today's options cannot describe keeps its key, which is none of today's.
    """
    if found.get("format") != 1:
        return dict(found)
    rows = []
    for row in found["rows"]:
        trained = _train_key(row["options"])
        keys = {} if trained is None else {"train_key": trained, "key": digest([trained, row["evaluate"]])}
        rows.append({**row, **keys})
    key = digest([[row["name"], row["key"]] for row in rows])
    return {**found, "format": 2, "key": key, "rows": rows}


def manifest_of_today(found: Mapping[str, Any], settings: Sequence[Setting], work: Path) -> dict[str, Any]:
    """The manifest of a work folder as it would be written today, as far as its settings are today's."""
    if found.get("format") != 1:
        return dict(found)
    before = keys_before(found, settings, work)
    strange = {folder.name for folder in work.glob("train/*") if not folder.is_symlink()} - {*before.values()}
    now = {each.name: each.key for each in settings if each.name in before or not strange}
    entries = [{**entry, "key": now.get(entry["name"], entry["key"])} for entry in found["settings"]]
    return {**found, "format": 2, "settings": entries}


def keys_before(found: Mapping[str, Any], settings: Sequence[Setting], work: Path) -> dict[str, str]:
    """By the names of settings that were begun and are what they were: their trainings' hashes in format 1."""
    entries = {entry["name"]: entry for entry in found["settings"]}
    folders = [folder.name for folder in work.glob("train/*")]
    return {
        setting.name: trained
        for setting in settings
        if (entry := entries.get(setting.name)) and _train_key(entry["options"]) == setting.train_key
        for trained in folders
        if digest([trained, setting.evaluate]) == entry["key"]
    }


def link_older(found: Mapping[str, Any], settings: Sequence[Setting], work: Path) -> None:
    """Let what a work folder of format 1 holds be found under today's hashes: trainings, and evaluations.

    An evaluation that has begun and not ended is begun anew, since its run would name another checkpoint.
    """
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


def _train_key(recorded: Mapping[str, Any]) -> str | None:
    """Today's hash of a training by the options that were recorded; None where there is no such training now."""
    elsewhere = {name for each in OBJECTIVES.values() for name in types_of(each.training)}
    try:
        name, checkpoint = recorded.get("family"), str(recorded["checkpoint"])
        family = get_family(name) if name else find_family("", checkpoint)[0]
        kind = get_objective(recorded.get("objective", TrainOptions.objective)).train_options(
            family.check_training()
        )
        types = types_of(kind, without=("out",))
        # every training had the options of all objectives once
        dropped = {"out"} | (elsewhere - {*types})
        known = {option: value for option, value in recorded.items() if option not in dropped}
        return digest(hashed(kind(**convert(known, types, "recorded"), out=Path()), family))
    except (UsageError, KeyError):
        return None
