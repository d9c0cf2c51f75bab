"""Released VLN-CE checkpoints (.pth): found complete, checked key by key, and made into a network.

A file is a dictionary of `state_dict` and `config`; those of interrupted trainings hold an optimizer and counters
beside them. Files from before October 2021 name the RGB network as torchvision does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agents.common.checkpoints.files import content_hash
from agents.common.checkpoints.pickled import read_pickled
from agents.common.checkpoints.weights import shorten
from agents.vlnce.config import Config, NetworkConfig, read_config
from agents.vlnce.policy import Policy
from vlnbench.errors import UsageError
from vlnbench.util.durable.fields import short

SETTINGS = ("habitat.config.default.Config",)
"""The class of habitat-lab whose objects VLN-CE's trainers store as `config`."""
DEPTH_PREFIX, RGB_PREFIX = "net.depth_encoder.visual_encoder.", "net.rgb_encoder.cnn."
DEPTH_FILE = Path("ddppo-models", "gibson-2plus-resnet50.pth")
RGB_FILE = Path("resnet50-0676ba61.pth")
"""torchvision's first weights for ResNet-50; the second ones are another network's."""
DDPPO_PREFIX = "actor_critic.net.visual_encoder."
COUNT = ".num_batches_tracked"
"""How often batch norm has averaged: older files of torchvision lack it, and nothing here reads it."""
TORCHVISION = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}


@dataclass(frozen=True)
class Entry:
    """A tensor in a file, and its name there."""

    path: Path
    key: str
    tensor: Tensor


@dataclass(frozen=True)
class Loaded:
    """A checkpoint's network on the CPU, in evaluation mode, its config, the files it came from and their hash."""

    policy: Policy
    config: Config
    sha256: str
    files: tuple[Path, ...]


def load(path: Path) -> Loaded:
    """Read a checkpoint. Convolutions that it lacks are looked for beside it: see DEPTH_FILE and RGB_FILE.

    Raises UsageError, one line with file and key, before a network is built in memory, for files that
    `read_pickled` or `read_config` refuse and for weights that are not exactly those of the network in the
    config; and for weights that are not finite.
    """
    config, entries, files = _read(path)
    counted = path.parent / RGB_FILE not in files
    with torch.device("meta"):
        policy = Policy(config.network)
    counts = [name for name in policy.state_dict() if name.endswith(COUNT) and name not in entries]
    _check(entries, policy, path, () if counted else counts)
    zeros = {name: torch.tensor(0) for name in counts}
    policy.load_state_dict(zeros | {name: _copied(entry) for name, entry in entries.items()}, assign=True)
    return Loaded(policy.eval(), config, content_hash(files), tuple(files))


def read(path: Path) -> Config:
    """The config of a checkpoint, widths of its ResNets included. Raises UsageError as `load`."""
    return _read(path)[0]


def _read(path: Path) -> tuple[Config, dict[str, Entry], list[Path]]:
    content = read_pickled(path, SETTINGS, checksums=True)
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise UsageError(f"{path}: state_dict: expected the weights of VLN-CE's trainers under this name")
    config = read_config(content.get("config"), str(path))
    entries = _renamed(_entries(path, content["state_dict"]))
    files = [path, *_complete(entries, path)]
    return replace(config, network=_with_shapes(config.network, entries, path)), entries, files


def _entries(path: Path, state: Mapping[Any, Any]) -> dict[str, Entry]:
    for key, value in state.items():
        if not isinstance(value, Tensor) or not isinstance(key, str):
            raise UsageError(f"{path}: state_dict[{short(key)}]: expected a tensor under a name")
    return {key: Entry(path, key, tensor) for key, tensor in state.items()}


def _renamed(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Entries under today's names; torchvision's classifier, which old files carry unused, is left out."""
    renamed: dict[str, Entry] = {}
    for key, entry in entries.items():
        if key.startswith(RGB_PREFIX):
            child, _, rest = key.removeprefix(RGB_PREFIX).partition(".")
            if child == "fc":
                continue
            key = f"{RGB_PREFIX}{TORCHVISION.get(child, child)}.{rest}"
        elif key in ("net.rgb_encoder.fc.weight", "net.rgb_encoder.fc.bias"):
            key = key.replace(".fc.", ".fc.1.")
        if key in renamed:
            path, other = entry.path, renamed[key].key
            raise UsageError(f"{path}: {entry.key} and {other} are two names of one weight")
        renamed[key] = entry
    return renamed


def _complete(entries: dict[str, Entry], path: Path) -> list[Path]:
    """Add the convolutions that a checkpoint lacks as a whole from the files beside it; returns those files."""
    used = []
    if not any(key.startswith(DEPTH_PREFIX) for key in entries):
        place = path.parent / DEPTH_FILE
        if not place.is_file():
            raise UsageError(f"{path} lacks the depth encoder: put DD-PPO's {DEPTH_FILE.name} at {place}")
        found = _beside(place)
        cut = len(DDPPO_PREFIX)
        entries |= {
            DEPTH_PREFIX + key[cut:]: entry for key, entry in found.items() if key.startswith(DDPPO_PREFIX)
        }
        used.append(place)
    if not any(key.startswith(RGB_PREFIX) for key in entries):
        place = path.parent / RGB_FILE
        if not place.is_file():
            raise UsageError(f"{path} lacks the RGB encoder: put torchvision's {RGB_FILE} at {place}")
        found = _beside(place)
        entries |= _renamed({RGB_PREFIX + key: entry for key, entry in found.items()})
        used.append(place)
    return used


def _beside(place: Path) -> dict[str, Entry]:
    """The tensors of another file, with or without a `state_dict` around them."""
    content = read_pickled(place, SETTINGS, checksums=True)
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise UsageError(f"{place}: expected the weights of an encoder, by name")
    return _entries(place, state)


def _with_shapes(config: NetworkConfig, entries: Mapping[str, Entry], path: Path) -> NetworkConfig:
    """The config with what only the weights tell: number of actions and widths of the two ResNets."""

    def rows(key: str, allowed: Sequence[int], expected: str) -> int:
        shape = entries[key].tensor.shape if key in entries else ()
        if not shape:
            raise UsageError(f"{path}: {key} is missing: these are not the weights of a {config.kind} of VLN-CE")
        if shape[0] not in allowed:
            raise UsageError(f"{path}: {entries[key].key} {list(shape)}: expected {expected}")
        return shape[0]

    return replace(
        config,
        num_actions=rows("action_distribution.linear.weight", (4, 6), "4 actions, or 6 with looking up and down"),
        rgb_width=rows(RGB_PREFIX + "0.weight", range(1, 1025), "1 to 1024 channels"),
        depth_planes=rows(DEPTH_PREFIX + "backbone.conv1.0.weight", range(2, 1025, 2), "2, 4, ... 1024 channels"),
    )


def _check(entries: Mapping[str, Entry], policy: Policy, path: Path, spare: Collection[str]) -> None:
    """Raise UsageError unless `entries` are exactly what the network holds; `spare` may be missing."""
    wanted = policy.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    faults = {
        "missing": [name for name in wanted if name not in entries and name not in spare],
        "unexpected": [entries[name].key for name in entries if name not in wanted],
        "misshapen": [
            f"{entry.key} {list(entry.tensor.shape)} for {list(shapes[name])}"
            for name, entry in entries.items()
            if name in shapes and entry.tensor.shape != shapes[name]
        ],
        "of another type": [
            f"{entry.key} ({str(entry.tensor.dtype).removeprefix('torch.')})"
            for name, entry in entries.items()
            if name in wanted and wanted[name].dtype != entry.tensor.dtype
        ],
    }
    found = [f"{len(names)} {kind}: {shorten(names)}" for kind, names in faults.items() if names]
    if found:
        raise UsageError(
            f"{path}: the weights are not those of the {policy.config.kind} in its config: {'; '.join(found)}"
        )


def _copied(entry: Entry) -> Tensor:
    """A tensor in memory of its own, not a view of a file that may be replaced."""
    tensor = entry.tensor.detach().clone(memory_format=torch.contiguous_format)
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise UsageError(f"{entry.path}: {entry.key} holds numbers that are not finite")
    return tensor
