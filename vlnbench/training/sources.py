"""What a checkpoint's name means: one rule for training, planning, evaluation and matrices. Loads nothing heavy.

preset:NAME   a network that a family makes with random weights
a path        that folder or file
NAME          the checkpoint of that name that comes with vlnbench; or published sizes, which are only planned;
              or a preset, where nothing else has its name
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vlnbench.errors import UsageError, unknown
from vlnbench.training.family import FamilySpec, Source
from vlnbench.util.loading import import_module

PRESET = "preset:"


def shipped() -> dict[str, Path]:
    """The checkpoints that come with vlnbench, by name."""
    root = Path(next(iter(import_module("agents").__path__)), "checkpoints")
    return {folder.name: folder for folder in sorted(root.iterdir()) if folder.is_dir()}


def find_checkpoint(name: str | Path, *families: FamilySpec) -> Path:
    """Where a trained checkpoint lies. Raises UsageError for a name that is none, and for presets."""
    source = find_source(str(name), families)
    if source.path is None:
        raise UsageError(
            f"--checkpoint {name}: without trained weights; expected a path or one of {', '.join(shipped())}"
        )
    return source.path


def find_source(name: str, families: Sequence[FamilySpec], option: str = "--checkpoint") -> Source:
    """What `name` means. Raises UsageError if nothing is called so; `option` is what the user gave it to."""
    presets = [preset for family in families for preset in family.presets]
    sizes = [size for family in families for size in family.sizes]
    if name.startswith(PRESET):
        wanted = name.removeprefix(PRESET)
        if wanted not in presets:
            raise UsageError(f"{option} {name}: {unknown('preset', wanted, presets)}")
        return Source("preset", wanted)
    if Path(name).exists():
        return Source("checkpoint", name, Path(name))
    if name in shipped():
        return Source("checkpoint", name, shipped()[name])
    if name in sizes:
        return Source("sizes", name)
    if name in presets:
        return Source("preset", name)
    every = [*shipped(), *(PRESET + preset for preset in presets), *(sizes if option == "--model" else ())]
    raise UsageError(f"{option} {name}: no such file or folder, and {unknown('checkpoint', name, every)}")
