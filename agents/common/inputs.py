"""What a network sees and says, saved beside its weights: one description that trainer, agent and planner read.

A family derives one frozen dataclass from `Inputs`. Its options have fields of the same names whose default is
None, "as the checkpoint was trained"; an option that is given stands in the place of what the checkpoint says, and
in the run's identity. So a checkpoint that was trained with unusual inputs is evaluated with those, too.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from vlnbench.errors import UsageError
from vlnbench.util.durable.limits import read_bounded

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

INPUTS = "inputs.json"
"""The file beside the weights."""

LONGEST = 40
"""Characters of a value that a line shows."""

Self = TypeVar("Self", bound="Inputs")
Described = TypeVar("Described")
Options = TypeVar("Options", bound="DataclassInstance")

Wording = Literal["published", "evaluation"]
"""How questions are put: as a published training does, or as its evaluation, which is another text."""

STRICT: dict[str, Any] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
"""How dataclasses are read from JSON: as they are written, and nothing else."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Base of a family's description: numbers, texts and truth values, by default the published ones."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    def over(self: Self, given: object, **instead: Any) -> Self:
        """The same with every field that `given`, an object with fields of these names, does not leave None.

        instead: what stands in the place of some of them, such as a file's content of its path; None for nothing.
        """
        chosen = {each.name: getattr(given, each.name, None) for each in fields(self)} | instead
        return replace(self, **{name: value for name, value in chosen.items() if value is not None})

    def text(self) -> str:
        """Content of the file; what a checkpoint folder writes beside its weights."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def read(cls: type[Self], folder: Path) -> Self | None:
        """What a checkpoint folder says, None where it says nothing: one that other programs wrote.

        Raises UsageError, with file and field, for a file that is none or says what cannot be.
        """
        path = folder / INPUTS
        if not path.exists():
            return None
        try:
            return validated(cls, read_bounded(path).removeprefix(BOM_UTF8), path)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error})") from error


def validated(kind: type[Described], content: str | bytes, path: Path) -> Described:
    """JSON as a dataclass whose `__pydantic_config__` is `STRICT`. Raises UsageError, with file and field."""
    from pydantic import TypeAdapter, ValidationError  # takes a while to load, and this is read once

    try:
        return TypeAdapter(kind).validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path}: {name}: {first['msg'].lower()}; save the checkpoint again") from None


def filled(options: Options, told: Mapping[str, object]) -> Options:
    """Options in which what was not given, and is told, is what is told; see `Checkpoints.settled`."""
    left = {name for name in told if getattr(options, name, ...) is None}
    return replace(options, **{name: told[name] for name in left})


def described(inputs: Inputs, folder: Path) -> str:
    """One line on what the network sees and says, and whether its checkpoint says so or it is assumed."""
    shown = ", ".join(f"{name} {value}" for name, value in asdict(inputs).items() if len(str(value)) <= LONGEST)
    if (folder / INPUTS).exists():
        return f"inputs: {shown}"
    return f"inputs: {shown}; assumed where no option says so, for the checkpoint has no {INPUTS}"
