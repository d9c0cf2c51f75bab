"""What a checkpoint's name means: one rule for training, planning, evaluation and matrices. Loads nothing heavy.

preset:NAME   a network that a family makes with random weights
hf:ORG/NAME   a checkpoint on the Hugging Face hub; hf:ORG/NAME@REVISION one commit, tag or branch of it
a path        that folder or file
NAME          the checkpoint of that name that comes with vlnbench; or published sizes, which are only planned;
              or a preset, where nothing else has its name
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vlnbench.errors import UsageError, unknown
from vlnbench.training.family.checkpoints import Source
from vlnbench.training.family.spec import FamilySpec
from vlnbench.util import hub
from vlnbench.util.loading import import_module

PRESET = "preset:"


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


def with_weights(source: Source, trust_pickle: bool = False) -> Source:
    """The same, of which all files are here: `find_source` fetches of a repository only what says what it is."""
    if not hub.is_hub(source.name):
        return source
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
    raise UsageError(f"{option} {name:.100}: no such file or folder, and {unknown('checkpoint', name, every)}")


def no_checkpoint(folder: Path) -> UsageError:
    """What a folder without a model's config.json is, and what to do with it."""
    known = other_content(folder)
    return UsageError(known or f"{folder} is not a checkpoint: expected a folder with config.json in it")


def other_content(folder: Path) -> str:
    """What a folder of weights is that is no model, and how to make one of it; empty where that is not known."""
    if (folder / "adapter_config.json").is_file():
        return (
            f"{folder} holds adapters, not a model: merge them into their base, with peft's "
            "AutoPeftModel.from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW), and name NEW"
        )
    if (folder / "zero_to_fp32.py").is_file():
        return (
            f"{folder} holds what DeepSpeed resumes from, not a model: run `python zero_to_fp32.py . NEW` in it, "
            "put config.json and the tokenizer beside, and name NEW; or let the training save the model, with "
            "stage3_gather_16bit_weights_on_model_save"
        )
    return ""
