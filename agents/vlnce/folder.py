"""Checkpoint folders of our own trainings: config.json and model.safetensors, for networks of either encoder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from agents.common.checkpoints.files import CONFIG, content_hash, read_json
from agents.common.checkpoints.pickled import reason
from agents.common.checkpoints.weights import shorten
from agents.vlnce.config import LARGEST, TOKENS, Config, NetworkConfig, Views
from agents.vlnce.options import MODEL_TYPE
from agents.vlnce.policy import Policy
from vlnbench.errors import UsageError
from vlnbench.interfaces import Conventions
from vlnbench.util.durable.fields import short
from vlnbench.util.durable.limits import regular

WEIGHTS = "model.safetensors"

_Record = TypeVar("_Record", bound="NetworkConfig | Views | Conventions")


def read_folder_config(folder: Path) -> Config:
    """The config of a checkpoint folder. Raises UsageError for a field that is absent, unknown or wrong."""
    path = folder / CONFIG
    values = read_json(path)
    if values.get("model_type") != MODEL_TYPE:
        raise UsageError(f"{path}: model_type: expected {MODEL_TYPE!r}")
    words = values.get("vocabulary", [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UsageError(f"{path}: vocabulary: expected a list of words")
    network = _record(NetworkConfig, values, "network", path)
    if network.reads != TOKENS:
        raise UsageError(f"{path}: network.reads: expected {TOKENS!r}, found {short(network.reads)}")
    if words and network.vocab_size != len(words) + 2:
        raise UsageError(f"{path}: network.vocab_size: expected {len(words) + 2}, 2 more than the vocabulary has")
    return Config(
        network=network,
        views=_record(Views, values, "views", path),
        expects=_record(Conventions, values, "expects", path),
        samples=values.get("samples") is True,
        vocabulary=tuple(words),
    )


def load_folder(folder: Path) -> tuple[Policy, Config, str]:
    """The network in evaluation mode, its config, and a hash of its files.

    Raises UsageError, before a network is built in memory, for weights that are not exactly those of the config.
    """
    config = read_folder_config(folder)
    path = folder / WEIGHTS
    try:
        state = load_file(regular(path))
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: cannot be read ({reason(error)}); copy the checkpoint again") from None
    with torch.device("meta"):
        policy = Policy(config.network)
    wanted = {name: tuple(tensor.shape) for name, tensor in policy.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if differing := [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]:
        raise UsageError(
            f"{path}: the weights are not those of the {config.network.kind} in {CONFIG}: {shorten(differing)}"
        )
    broken = next((name for name, each in state.items() if not bool(torch.isfinite(each).all())), None)
    if broken is not None:
        raise UsageError(f"{path}: {broken} holds numbers that are not finite")
    policy.load_state_dict(state, assign=True)
    return policy.eval(), config, folder_hash(folder)


def save_folder(policy: Policy, config: Config, folder: Path, without: str | None = None) -> None:
    """Write a checkpoint folder, which appears at its name only when complete.

    without: weights whose names begin so are not written.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    values = {
        "model_type": MODEL_TYPE,
        "network": asdict(policy.config),
        "views": asdict(config.views),
        "expects": asdict(config.expects),
        "samples": config.samples,
        "vocabulary": config.vocabulary,
    }
    (part / CONFIG).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    kept = {
        name: each.detach().contiguous()
        for name, each in policy.state_dict().items()
        if without is None or not name.startswith(without)
    }
    save_file(kept, part / WEIGHTS)
    shutil.copymode(part / CONFIG, part / WEIGHTS)  # safetensors keeps them from everybody else
    os.replace(part, folder)


def folder_hash(folder: Path) -> str:
    """Hash of config and weights. Raises UsageError where one is missing."""
    for path in folder_files(folder):
        if not path.is_file():
            raise UsageError(f"{path} is missing; copy the whole checkpoint")
    return content_hash(folder_files(folder))


def folder_files(folder: Path) -> tuple[Path, ...]:
    """The files that loading a folder reads."""
    return folder / CONFIG, folder / WEIGHTS


def _record(kind: type[_Record], values: Mapping[str, Any], name: str, path: Path) -> _Record:
    """One node of the config; every field has the type that the class gives it."""
    node = values.get(name)
    if not isinstance(node, dict):
        raise UsageError(f"{path}: {name}: expected an object")
    hints = get_type_hints(kind)
    if unknown := [key for key in node if key not in hints]:
        raise UsageError(f"{path}: {name}.{short(unknown[0])}: not a field that is known here")
    found: dict[str, Any] = {}
    for each in fields(kind):
        if each.name not in node:
            raise UsageError(f"{path}: {name}.{each.name}: missing")
        value = node[each.name]
        value = tuple(value) if isinstance(value, list) else value
        if not _fits(value, hints[each.name]):
            raise UsageError(
                f"{path}: {name}.{each.name}: not a value that this field can have, {short(node[each.name])}"
            )
        found[each.name] = value
    return kind(**found)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a field has; sizes are whole numbers from 1 to LARGEST."""
    kind, inside = get_origin(hint), get_args(hint)
    if kind is Literal:
        return value in inside
    if kind is UnionType:
        return any(_fits(value, each) for each in inside)
    if kind is tuple:
        return isinstance(value, tuple) and len(value) == len(inside) and all(map(_fits, value, inside))
    if hint is int:
        return type(value) is int and 1 <= value <= LARGEST
    if hint is float:
        return type(value) in (int, float) and abs(value) < 1e9
    return type(value) is hint
