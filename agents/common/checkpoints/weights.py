"""Weight files of a checkpoint: safetensors, in one file or in shards with an index, and what others save."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from agents.common.checkpoints import quantized
from agents.common.checkpoints.adapters import Adapters, adapter_files, is_adapter, read_adapters
from agents.common.checkpoints.files import CONFIG, GENERATION, read_json
from agents.common.checkpoints.pickled import LONGEST, read_pickled, reason
from agents.common.checkpoints.tokenizer import TOKENIZER_FILES
from agents.common.inputs import INPUTS, Inputs
from vlnbench.errors import UsageError
from vlnbench.training.family.sources import other_content
from vlnbench.util.durable.fields import TEXT
from vlnbench.util.durable.folder import appearing
from vlnbench.util.durable.limits import MAX_HEADER, MAX_TABLE, regular
from vlnbench.util.hub import ADAPTER_CONFIG, BESIDE, PICKLES, TENSORS, fetched
from vlnbench.util.progress import say

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SETS = (SINGLE, INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")
"""What a set of weights is known by, in the order in which transformers look for one."""
FLOATS = ("F64", "F32", "F16", "BF16")
PREFIXES = ("module.", "base_model.model.")
"""What data parallelism and PEFT put before every name of a model."""
WRAPPED = re.compile(r"(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""What compiling, FSDP and activation checkpointing put into names, anywhere."""
BUFFERS = re.compile(r"(.*\.)?(original_inv_freq|inv_freq|position_ids|cos_cached|sin_cached|num_batches_tracked)")
"""Tables that networks compute, which older versions saved beside what was learned."""
TIED = "tie_word_embeddings is true: where both are meant, make it false in config.json"
NAMED = 3  # keys of one kind that a message lists
SHARD = re.compile(r"[\w. -]{1,200}\.(safetensors|bin)")


@dataclass(frozen=True)
class Entry:
    """One tensor in a file, before it is read. `floating`: whether it holds floating-point numbers."""

    path: Path
    stored: str
    shape: tuple[int, ...]
    floating: bool


def weight_files(folder: Path, trust_pickle: bool = False) -> list[Path]:
    """The weight files of a checkpoint folder, sorted, and those of adapters over it.

    Of several sets the first of `SETS` is taken, with a line. Raises UsageError where there is none, where an
    index names a file that is absent, and for pickled weights that the user does not vouch for.
    """
    loose = sorted(path for each in (*TENSORS, *PICKLES) for path in folder.glob(each))
    loose = [path for path in loose if not BESIDE.match(path.name)]
    sets = [name for name in SETS if (folder / name).is_file()]
    found = _listed(folder / sets[0]) if sets else [path for path in loose if _is_pickle(path)]
    if not found:
        raise UsageError(other_content(folder) or f"{folder} has no weights: expected {SINGLE} or {INDEX}")
    found += adapter_files(folder)
    if not trust_pickle and (pickled := [path for path in found if _is_pickle(path)]):
        raise UsageError(
            f"{pickled[0]} is a pickle, which can run code: convert the checkpoint to safetensors, or say that you"
            " trust the file with --trust-pickle"
        )
    if (folder / ADAPTER_CONFIG).is_file():
        _say_once(f"{folder}: the adapters beside the weights are not merged into them, for they may be already")
    if others := [name for name in [*sets[1:], *(path.name for path in loose)] if folder / name not in found]:
        _say_once(f"{folder}: weights are read from {found[0].name}, as transformers does, not from {others[0]}")
    return found


def _is_pickle(path: Path) -> bool:
    return path.suffix in (".bin", ".pt", ".pth")


def _listed(path: Path) -> list[Path]:
    """The files of a set of weights: this one, or those that this index names."""
    if path.suffix != ".json":
        return [path]
    shards = read_json(path, MAX_TABLE).get("weight_map")
    suffix = Path(path.stem.removesuffix(".index")).suffix
    values = list(shards.values()) if isinstance(shards, dict) else []
    names = {Path(each).name if isinstance(each, str) else "" for each in values}
    if not names or not all(SHARD.fullmatch(name) and name.endswith(suffix) for name in names):
        raise UsageError(f"{path}: weight_map: expected an object of key: name of a {suffix} file")
    found = sorted(path.parent / name for name in names)
    for each in found:
        if not each.is_file():
            raise UsageError(f"{each} is missing: {path.name} names it; copy the whole checkpoint again")
    return found


@cache
def _say_once(line: str) -> None:
    say(line)


def read_entries(
    files: Sequence[Path], unused: Collection[str] = (), named: Callable[[str], str] = str
) -> dict[str, Entry]:
    """Names and shapes of all tensors in `files` but those called `unused` and `BUFFERS`; nothing is loaded.

    named: the model's name of what a file calls so, without what wrappers add to names (`WRAPPED`), of which a
    line is said. Raises UsageError for a damaged file, for a name that is there twice, and for adapters that do
    not fit what they are over.
    """
    entries: dict[str, Entry] = {}
    for path in files:
        if is_adapter(path):
            continue
        of_file = dict(_entries(path))
        plain = without_wrappers(of_file)
        if added := next((stored for stored in of_file if plain(stored) != stored), None):
            _say_once(f"{path}: names are read without what a wrapper added, such as {added} as {plain(added)}")
        for stored, entry in of_file.items():
            name = named(plain(stored))
            if name in unused or BUFFERS.fullmatch(name):
                continue
            if name in entries and not torch.equal(_tensor(entries[name]), _tensor(entry)):
                other = entries[name]
                tied = "" if other.stored == stored else f", as {other.stored}; {TIED}"
                raise UsageError(
                    f"{path}: {shorten([stored])} is in {other.path.name} as well, with other numbers{tied}"
                )
            entries.setdefault(name, entry)
    if adapters := _adapters(files, named):
        adapters.check({name: entry.shape for name, entry in entries.items()})
    return entries


def check_entries(entries: Mapping[str, Entry], model: nn.Module, folder: Path, config: str = CONFIG) -> None:
    """Raise UsageError, one line, unless `entries` are exactly what the model holds, but for `BUFFERS`."""
    held = model.state_dict()
    wanted = {name: tuple(each.shape) for name, each in held.items() if not BUFFERS.fullmatch(name)}
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
        raise UsageError(f"{folder}: the weights are not those of the model in {config}: {'; '.join(found)}")


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
    quantize: str | None = None,
) -> None:
    """Put the tensors of `files` in place of what the model holds, one at a time; others are left out.

    quantize: how the language model's blocks keep theirs; see `quantized`.

    Raises UsageError for numbers that are not finite, in a file or as `dtype`: an agent with them walks, too.
    """
    wanted = model.state_dict().keys()
    adapters = _adapters(files, named)
    for path in (each for each in files if not is_adapter(each)):
        plain = without_wrappers(name for name, _ in _entries(path))
        for stored, tensor in _tensors(path):
            name = named(plain(stored))
            if name not in wanted:
                continue
            whole = adapters.over(name, tensor) if adapters else tensor
            parent, _, leaf = name.rpartition(".")
            module = model.get_submodule(parent)
            few_bits = quantize is not None and leaf == "weight" and quantized.is_taken(parent, module)
            there = "cpu" if few_bits else device
            placed = whole.to(device=there, dtype=dtype if whole.is_floating_point() else whole.dtype)
            if not _is_finite(placed):
                narrow = f" as {dtype}; choose another --dtype" if _is_finite(whole) else ""
                where = adapters.path if adapters and not narrow and _is_finite(tensor) else path
                raise UsageError(f"{where}: {stored} holds numbers that are not finite{narrow}")
            if few_bits:
                assert quantize is not None
                model.set_submodule(parent, quantized.quantize(module, placed, quantize, device))
            elif leaf in module._buffers:
                module.register_buffer(leaf, placed)
            else:
                module.register_parameter(leaf, nn.Parameter(placed))


def _adapters(files: Sequence[Path], named: Callable[[str], str]) -> Adapters | None:
    return read_adapters(files, _tensors, lambda name: named(WRAPPED.sub("", name)))


def without_wrappers(names: Iterable[str]) -> Callable[[str], str]:
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

    Of a config that has `torch_dtype`, `dtype` is left out, which would be that of what was read.

    The folder appears at its name only when complete. Raises UsageError if `folder` exists.
    """
    if "torch_dtype" in config:
        config = {name: value for name, value in config.items() if name != "dtype"}
    with appearing(folder, "checkpoint") as made:
        (made / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        if inputs is not None:
            (made / INPUTS).write_text(inputs.text())
        for path in copied:
            if path.is_file():
                shutil.copyfile(path, made / path.name)
        write(model, made, shard_size)


def _entries(path: Path) -> Iterator[tuple[str, Entry]]:
    if _is_pickle(path):
        for name, tensor in _tensors(path):
            yield name, Entry(path, name, tuple(tensor.shape), tensor.is_floating_point())
        return
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            part = file.get_slice(name)
            yield name, Entry(path, name, tuple(part.get_shape()), part.get_dtype() in FLOATS)


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    if _is_pickle(path):
        yield from _unpickled(path).items()
        return
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_tensor(name)


def _tensor(entry: Entry) -> Tensor:
    return next(tensor for name, tensor in _tensors(entry.path) if name == entry.stored)


def _opened(path: Path) -> Any:
    """A safetensors file, whose header and length have been checked against one another."""
    try:
        with fetched(regular(path)).open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if MAX_HEADER < length < path.stat().st_size:  # else it is damaged, as safetensors says
            raise UsageError(f"{path}: a header of {length:,} bytes; expected at most {MAX_HEADER >> 20} MiB")
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is damaged: {reason(error)}; copy it again") from None


def _unpickled(path: Path) -> dict[str, Tensor]:
    """Tensors of a pickle that the user trusts, which still may hold nothing else."""
    state = read_pickled(path)
    named = isinstance(state, dict) and all(map(TEXT.fits, state))
    if not named or not all(isinstance(value, Tensor) for value in state.values()):
        raise UsageError(f"{path}: expected nothing but named tensors")
    return dict(state)
