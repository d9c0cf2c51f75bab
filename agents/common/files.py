"""What a checkpoint folder holds beside weights: JSON fields, checked one by one, and a hash of all files."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vlnbench.errors import UsageError

CONFIG, GENERATION = "config.json", "generation_config.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Fields:
    """Typed look-ups in one JSON object; every complaint names the file, the field and what was expected."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive whole number. A field that is absent or null takes the default, if there is one."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(name, "a positive whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number of at least zero."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise self.error(name, "a number of at least 0")
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        """A string. A field that is absent or null takes the default, if there is one."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, "a string")
        return value

    def choice(self, name: str, *allowed: Any, default: Any = None) -> Any:
        """One of the allowed values, which are all booleans or none."""
        value = self._get(name, default)
        if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
            raise self.error(name, " or ".join(json.dumps(option) for option in allowed))
        return value

    def error(self, name: str, expected: str) -> UsageError:
        """The complaint about a field, to be raised: what was expected there and what was found."""
        found = json.dumps(self.values[name])[:80] if name in self.values else "nothing"
        return UsageError(f"{self.where}: {name}: expected {expected}, found {found}")

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value


@dataclass(frozen=True)
class GenerationSettings:
    """Token ids that end an answer, and the repetition penalty (1: none) on tokens of the same answer."""

    eos: frozenset[int]
    repetition_penalty: float = 1.0


def generation_settings(folder: Path) -> GenerationSettings:
    """What generation_config.json says about greedy decoding; sampling fields do nothing there.

    A checkpoint without the file ends answers with config.json's `eos_token_id`, as transformers has it.
    """
    path = folder / GENERATION if (folder / GENERATION).is_file() else folder / CONFIG
    fields = Fields(read_json(path), str(path))
    found = fields.values.get("eos_token_id")
    eos: list[Any] = found if isinstance(found, list) else [found]
    if not eos or not all(isinstance(token, int) and not isinstance(token, bool) for token in eos):
        raise fields.error("eos_token_id", "a token id or a list of them")
    penalty = fields.number("repetition_penalty", default=1.0)
    if penalty == 0:
        raise fields.error("repetition_penalty", "a number above 0")
    return GenerationSettings(frozenset(eos), penalty)


def content_hash(paths: Iterable[Path]) -> str:
    """SHA-256 (hexadecimal) over names and contents of files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises UsageError for anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: expected a JSON object")
    return value
