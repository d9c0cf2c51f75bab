"""The first part of a family: from a name or a folder to a network, and back to a folder. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from vlnbench.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Source:
    """Where a network comes from. `path`, a folder or a file, is None for presets and sizes, which have a name."""

    kind: Literal["checkpoint", "preset", "sizes"]
    name: str
    path: Path | None = None


@dataclass(frozen=True)
class Placement:
    """In which precision a network trains; `notes` are what else the run's manifest says about it.

    device: where to load it, so that no process keeps a copy of its own in the host's memory. The trainer says it,
    a family need not.
    """

    dtype: torch.dtype
    notes: Mapping[str, str]
    device: torch.device | str = "cpu"

    @property
    def dtype_name(self) -> str:
        """The dtype's name as options and config files write it."""
        return str(self.dtype).removeprefix("torch.")


class Checkpoints(Protocol):
    """How networks of a family are read, made and written.

    Derive from this class; what has a body here need not be defined. `options` are those of the command that asks:
    of training, of planning or of planning to act. A family that is only evaluated needs no more than this.
    `vlnbench.conformance.CheckpointsConformance` tests one.
    """

    def config(self, source: Source, options: Any) -> Any:
        """The network's sizes, as `options` change them; reads no weight.

        Raises UsageError for a checkpoint that is not of this family and for options that do not suit it.
        """
        ...

    def settled(self, source: Source, options: Any) -> Any:
        """Options with the checkpoint's own say in the place of those that were not given.

        Asked once, where a command knows its checkpoint: whoever comes later finds every option that decides what
        the network sees. Options of training, of planning and of planning to act alike.
        """
        return options

    def check_files(self, path: Path, options: Any) -> None:
        """Raise UsageError where something that training reads beside weights is not there; reads no weight."""

    def content_hash(self, path: Path, options: Any) -> str:
        """Hash of all files that training from a checkpoint reads."""
        ...

    def create(self, preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
        """Write a checkpoint folder with random weights. The same arguments give the same bytes."""
        raise UsageError(f"no preset {preset!r}")

    def placement(self, options: Any, device: torch.device) -> Placement:
        """Precision and the like. Raises UsageError for what this machine cannot do."""
        ...

    def load(self, path: Path, options: Any, placement: Placement) -> nn.Module:
        """The network of a checkpoint for `options` of training; see `Trains.fitted`, too.

        On `placement.device`, or on the CPU, from where it is moved.
        """
        ...

    def shapes(self, model: Any) -> nn.Module:
        """A network like this one on the meta device: parameters have shapes and no memory."""
        ...

    def save(self, model: Any, folder: Path, base: Path, options: Any) -> None:
        """Write a checkpoint folder, which appears at its name only when complete. `base` is what was loaded."""
        ...
