"""Weight files of a checkpoint: safetensors, in one file or in shards with an index."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from agents.common.checkpoints.files import CONFIG, GENERATION, read_json
from agents.common.checkpoints.pickled import LONGEST, read_pickled, reason
from agents.common.checkpoints.tokenizer import TOKENIZER_FILES
from agents.common.inputs import INPUTS, Inputs
from vlnbench.errors import UsageError
from vlnbench.util.durable.fields import TEXT
from vlnbench.util.durable.limits import MAX_TABLE, regular
from vlnbench.util.progress import say

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth")
FLOATS = ("F64", "F32", "F16", "BF16")
PREFIXES = ("module.", "base_model.model.")
"""What data parallelism and PEFT put before every name of a model."""
WRAPPED = re.compile(r"(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""What compiling, FSDP and activation checkpointing put into names, anywhere."""
NAMED = 3  # keys of one kind that a message lists
SHARD = re.compile(r"[\w. -]{1,200}\.safetensors")


@dataclass(frozen=True)
class Entry:
    """One tensor in a file, before it is read. `floating`: whether it holds floating-point numbers."""

    path: Path
    shape: tuple[int, ...]
    floating: bool


def weight_files(folder: Path, trust_pickle: bool = False) -> list[Path]:
    """The weight files of a checkpoint folder, sorted.

    Raises UsageError where there are none, where the index names one that is absent, and for pickled weights that
    the user does not vouch for.
    """
    index = folder / INDEX
    if index.is_file():
        shards = read_json(index, MAX_TABLE).get("weight_map")
        if not isinstance(shards, dict) or not shards or not all(map(_is_shard, shards.values())):
            raise UsageError(f"{index}: weight_map: expected an object of key: name of a .safetensors file")
        found = sorted({folder / Path(name).name for name in shards.values()})
        for path in found:
            if not path.is_file():
                raise UsageError(f"{path} is missing: {INDEX} names it; copy the whole checkpoint again")
        return found
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    pickled = sorted(path for pattern in PICKLES for path in folder.glob(pattern))
    if not pickled:
        raise UsageError(f"{folder} has no weights: expected {SINGLE} or {INDEX}")
    if not trust_pickle:
        raise UsageError(
            f"{pickled[0]} is a pickle, which can run code: convert the checkpoint to safetensors, or say that you"
            " trust the file with --trust-pickle"
        )
    return pickled


def _is_shard(name: Any) -> bool:
    return isinstance(name, str) and SHARD.fullmatch(Path(name).name) is not None


def read_entries(
    files: Sequence[Path], unused: Collection[str] = (), named: Callable[[str], str] = str
) -> dict[str, Entry]:
    """Names and shapes of all tensors in `files` but those called `unused`; nothing is loaded.

    named: the model's name of what a file calls so, without what wrappers add to names (`WRAPPED`), of which a
    line is said. Raises UsageError for a damaged file and for a name that is there twice.
    """
    entries: dict[str, Entry] = {}
    for path in files:
        of_file = dict(_entries(path))
        plain = _without_wrappers(of_file)
        if added := next((stored for stored in of_file if plain(stored) != stored), None):
            say(f"{path}: names are read without what a wrapper added, such as {added} as {plain(added)}")
        for stored, entry in of_file.items():
            name = named(plain(stored))
            if name in unused:
                continue
            if name in entries:
                raise UsageError(f"{path}: {shorten([name])} is in {entries[name].path.name} as well")
            entries[name] = entry
    return entries


def check_entries(entries: Mapping[str, Entry], model: nn.Module, folder: Path) -> None:
    """Raise UsageError, one line, unless `entries` are exactly the model's parameters."""
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    shapes = [
        f"{name} {list(entries[name].shape)} for {list(shape)}"
        for name, shape in wanted.items()
        if name in entries and entries[name].shape != shape
    ]
    faults = {
        "missing": [name for name in wanted if name not in entries],
        "unexpected": [name for name in entries if name not in wanted],
        "misshapen": shapes,
        "not floating-point": [name for name, entry in entries.items() if not entry.floating],
    }
    found = [f"{len(names)} {kind}: {shorten(names)}" for kind, names in faults.items() if names]
    if found:
        raise UsageError(f"{folder}: the weights are not those of the model in config.json: {'; '.join(found)}")


def shorten(names: Sequence[str]) -> str:
    """The first `NAMED` of the names, and how many more there are."""
    listed = ", ".join(ascii(name)[1:-1][:LONGEST] for name in names[:NAMED])
    return listed if len(names) <= NAMED else f"{listed} and {len(names) - NAMED} more"


def fill(
    model: nn.Module,
    files: Sequence[Path],
    dtype: torch.dtype,
    device: torch.device,
    named: Callable[[str], str] = str,
) -> None:
    """Put the tensors of `files` in place of the model's parameters, one at a time; others are left out.

    Raises UsageError for numbers that are not finite, in a file or as `dtype`: an agent with them walks, too.
    """
    wanted = {name for name, _ in model.named_parameters()}
    for path in files:
        plain = _without_wrappers(name for name, _ in _entries(path))
        for stored, tensor in _tensors(path):
            name = named(plain(stored))
            if name not in wanted:
                continue
            parent, _, leaf = name.rpartition(".")
            module = model.get_submodule(parent)
            placed = tensor.to(device=device, dtype=dtype)
            if not _is_finite(placed):
                narrow = f" as {dtype}; choose another --dtype" if _is_finite(tensor) else ""
                raise UsageError(f"{path}: {stored} holds numbers that are not finite{narrow}")
            module.register_parameter(leaf, nn.Parameter(placed))


def _without_wrappers(names: Iterable[str]) -> Callable[[str], str]:
    """Of the names in a file: what takes the additions of wrappers from them, where all begin with one or it can
    be nothing else."""
    listed = [WRAPPED.sub("", name) for name in names]
    shared = ""
    while found := next(
        (each for each in PREFIXES if listed and all(name.startswith(shared + each) for name in listed)), None
    ):
        shared += found
    return lambda name: WRAPPED.sub("", name).removeprefix(shared)


def _is_finite(tensor: Tensor) -> bool:
    """Reads a tensor once: its extremes are finite exactly if all of it is."""
    return not tensor.numel() or all(bool(torch.isfinite(each)) for each in torch.aminmax(tensor))


def write(model: nn.Module, folder: Path, shard_size: str | int) -> None:
    """Write a model's parameters: one file, or shards of at most `shard_size` with an index."""
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_torch_state_dict(tensors, folder, max_shard_size=shard_size)


def folder_files(folder: Path, words: Path, trust_pickle: bool, more: Iterable[Path] = ()) -> Iterator[Path]:
    """The files that loading a checkpoint folder reads; words: where its tokenizer is, more: read beside them."""
    known = [
        folder / CONFIG,
        folder / GENERATION,
        folder / INPUTS,
        *(words / name for name in TOKENIZER_FILES),
        *more,
    ]
    yield from (path for path in known if path.is_file())
    yield from weight_files(folder, trust_pickle)


def write_folder(
    model: nn.Module,
    folder: Path,
    config: Mapping[str, Any],
    copied: Iterable[Path],
    shard_size: str | int,
    inputs: Inputs | None = None,
) -> None:
    """Write a checkpoint folder: config.json, inputs, copies of the files that there are, weights as `write` does.

    The folder appears at its name only when complete. Raises UsageError if `folder` exists.
    """
    with appearing(folder) as made:
        (made / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        if inputs is not None:
            (made / INPUTS).write_text(inputs.text())
        for path in copied:
            if path.is_file():
                shutil.copyfile(path, made / path.name)
        write(model, made, shard_size)


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A new folder to write a checkpoint into, which then gets its name. Raises UsageError if `folder` exists."""
    if folder.exists():
        raise UsageError(f"{folder} exists already: give a new folder for the checkpoint")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
        made = Path(name, "checkpoint")
        made.mkdir()
        yield made
        os.rename(made, folder)


def _entries(path: Path) -> Iterator[tuple[str, Entry]]:
    if path.suffix != ".safetensors":
        for name, tensor in _tensors(path):
            yield name, Entry(path, tuple(tensor.shape), tensor.is_floating_point())
        return
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            part = file.get_slice(name)
            yield name, Entry(path, tuple(part.get_shape()), part.get_dtype() in FLOATS)


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    if path.suffix != ".safetensors":
        yield from _unpickled(path).items()
        return
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_tensor(name)


def _opened(path: Path) -> Any:
    """A safetensors file, whose header and length have been checked against one another."""
    try:
        return safe_open(regular(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is damaged: {reason(error)}; copy it again") from None


def _unpickled(path: Path) -> dict[str, Tensor]:
    """Tensors of a pickle that the user trusts, which still may hold nothing else."""
    state = read_pickled(path)
    named = isinstance(state, dict) and all(map(TEXT.fits, state))
    if not named or not all(isinstance(value, Tensor) for value in state.values()):
        raise UsageError(f"{path}: expected nothing but named tensors")
    return dict(state)
