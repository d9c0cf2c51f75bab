"""What a checkpoint's name means: one rule for training, planning, evaluation and matrices. Loads nothing heavy.

preset:NAME   a network that a family makes with random weights
hf:ORG/NAME   a checkpoint on the Hugging Face hub; hf:ORG/NAME@REVISION one commit, tag or branch of it
a path        that folder or file
BASE+ADAPTERS adapters, in a folder or on the hub, merged into what they were trained on when it is read
NAME          the checkpoint of that name that comes with vlnbench; or published sizes, which are only planned;
              or a preset, where nothing else has its name
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from vlnbench.errors import UsageError, unknown
from vlnbench.rollout.agent_options import CheckpointOptions
from vlnbench.training.family.checkpoints import Source
from vlnbench.training.family.spec import FamilySpec
from vlnbench.util import hub
from vlnbench.util.durable.files import read_object
from vlnbench.util.loading import import_module

PRESET = "preset:"
BROUGHT = ("config.json", "generation_config.json", "inputs.json")
TOKENIZER = (
    *("tokenizer.json", "vocab.json", "tokenizer.model"),
    *("merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
)
"""What adapters may bring beside their weights. Each of the first three makes a tokenizer."""


def shipped() -> dict[str, Path]:
    """The checkpoints that come with vlnbench, by name."""
    root = Path(next(iter(import_module("agents").__path__)), "checkpoints")
    return {folder.name: folder for folder in sorted(root.iterdir()) if folder.is_dir()}


def find_checkpoint(name: str | Path, *families: FamilySpec, trust_pickle: bool = False) -> Path:
    """Where a trained checkpoint lies, weights and all.

    trust_pickle: whether pickled weights are downloaded where the hub has no others. Raises UsageError for a name
    that is none, and for presets.
    """
    source = with_weights(find_source(str(name), families), trust_pickle)
    if source.path is None:
        raise UsageError(
            f"--checkpoint {name}: without trained weights; expected a path or one of {', '.join(shipped())}"
        )
    return source.path


def opened(options: CheckpointOptions, family: FamilySpec) -> Path:
    """The folder of the checkpoint that an agent's options name, which are checked. Raises UsageError."""
    if options.checkpoint is None:
        raise UsageError(f"agent {family.agent!r} needs a trained model: name its folder with --checkpoint")
    options.check()
    return find_checkpoint(options.checkpoint, family, trust_pickle=options.trust_pickle)


def with_weights(source: Source, trust_pickle: bool = False) -> Source:
    """The same, of which all files are here: `find_source` fetches of a repository only what says what it is."""
    if hub.PREFIX not in source.name:
        return source
    if pair := _parts(source.name):
        base = with_weights(find_source(pair[0], ()), trust_pickle).path
        assert base is not None  # for it was there before
        return replace(source, path=joined(base, _adapters(pair[1], True, trust_pickle)[1]))
    return replace(source, path=hub.fetch(source.name, trust_pickle=trust_pickle).folder)


def find_source(name: str, families: Sequence[FamilySpec], option: str = "--checkpoint") -> Source:
    """What `name` means; that of a checkpoint on the hub ends with its commit.

    Raises UsageError if nothing is called so; `option` is what the user gave it to.
    """
    presets = [preset for family in families for preset in family.presets]
    sizes = [size for family in families for size in family.sizes]
    if name.startswith(PRESET):
        wanted = name.removeprefix(PRESET)
        if wanted not in presets:
            raise UsageError(f"{option} {name}: {unknown('preset', wanted, presets)}")
        return Source("preset", wanted)
    if pair := _parts(name):
        base = find_source(pair[0], families, option)
        spoken, adapters = _adapters(pair[1])
        if base.path is None or not base.path.is_dir():
            raise UsageError(f"{option} {name}: {pair[0]} is no checkpoint folder, which adapters go over")
        return Source("checkpoint", f"{base.name}+{spoken}", joined(base.path, adapters))
    if hub.is_hub(name):
        fetched = hub.fetch(name, weights=False)
        return Source("checkpoint", fetched.name, fetched.folder)
    if os.path.exists(name):  # False for what cannot be a path either
        return Source("checkpoint", name, Path(name))
    if name in shipped():
        return Source("checkpoint", name, shipped()[name])
    if name in sizes:
        return Source("sizes", name)
    if name in presets:
        return Source("preset", name)
    every = [*shipped(), *(PRESET + preset for preset in presets), *(sizes if option == "--model" else ())]
    hint = f" (on the Hugging Face hub: {option} {hub.PREFIX}{name:.100})" if hub.could_be_hub(name) else ""
    known = unknown("checkpoint", name, every)
    raise UsageError(f"{option} {name:.100}: no such file or folder{hint}, and {known}")


def _parts(name: str) -> tuple[str, str] | None:
    """BASE and ADAPTERS of a name that joins the two; None for any other."""
    if os.path.exists(name):  # a path may have the sign, too
        return None
    splits = [(name[:at], name[at + 1 :]) for at, letter in enumerate(name) if letter == "+"]
    there = (each for each in splits if hub.is_hub(each[1]) or os.path.isdir(os.path.expanduser(each[1])))
    return next(there, splits[-1] if splits else None)


def _adapters(name: str, weights: bool = False, trust_pickle: bool = False) -> tuple[str, Path]:
    """The name of adapters, with their commit where they are on the hub, and their folder."""
    if hub.is_hub(name):
        found = hub.fetch(name, weights=weights, trust_pickle=trust_pickle, config=hub.ADAPTER_CONFIG)
        return found.name, found.folder
    folder = Path(name).expanduser()  # which the shell does not do behind a sign
    if not (folder / hub.ADAPTER_CONFIG).is_file():
        raise UsageError(f"{name:.100}: no adapters; expected a folder with {hub.ADAPTER_CONFIG}")
    return name, folder


def joined(base: Path, adapters: Path) -> Path:
    """One folder of a checkpoint and of adapters over it, for as long as this process lives.

    It holds links: to what the base holds, to what the adapters bring in its stead, and to both folders, of which
    whoever reads the weights adds the one's to the other's.
    """
    folder = _room(base, adapters)
    brought = {name for name in (*BROUGHT, *TOKENIZER) if (adapters / name).is_file()}
    found = {path.name: path for path in base.iterdir() if not path.name.startswith(".")}
    if brought & {*TOKENIZER[:3]}:  # never a tokenizer of two halves
        found = {name: path for name, path in found.items() if name not in TOKENIZER}
    found |= {name: adapters / name for name in brought}
    for name, path in {**found, hub.BASE: base, hub.ADAPTERS: adapters}.items():
        if not (folder / name).is_symlink():  # the weights may have been fetched since
            (folder / name).symlink_to(path.absolute())
    return folder


@cache
def _room(base: Path, adapters: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="vlnbench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def no_checkpoint(folder: Path) -> UsageError:
    """What a folder without a model's config.json is, and what to do with it."""
    known = other_content(folder)
    return UsageError(known or f"{folder} is not a checkpoint: expected a folder with config.json in it")


def other_content(folder: Path) -> str:
    """What a folder of weights is that is no model, and how to make one of it; empty where that is not known."""
    try:
        hub.fetched(folder / "config.json")
    except UsageError as error:
        return str(error)
    if (folder / hub.ADAPTER_CONFIG).is_file():
        return (
            f"{folder} holds adapters, not a model: name what they were trained on before them, "
            f"--checkpoint {_base_of(folder)}+{folder}"
        )
    if (folder / "zero_to_fp32.py").is_file():
        return (
            f"{folder} holds what DeepSpeed resumes from, not a model: run `python zero_to_fp32.py . NEW` in it, "
            "put config.json and the tokenizer beside, and name NEW; or let the training save the model, with "
            "stage3_gather_16bit_weights_on_model_save"
        )
    return ""


def _base_of(adapters: Path) -> str:
    """What adapters say that they were trained on, as it is named here; BASE where they do not say it."""
    try:
        name = str(read_object(adapters / hub.ADAPTER_CONFIG).get("base_model_name_or_path") or "BASE")
    except UsageError:
        return "BASE"
    if not name.isprintable():
        return "BASE"
    return f"{hub.PREFIX}{name}" if hub.could_be_hub(name) and not os.path.exists(name) else name[:200]
