"""Records of a set that others wrote, field by field, and the files that they name."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.common.sets.trajectories import BELOW, stays_below
from vlnbench.errors import UsageError

_ROLES = ("human", "gpt")


class Records:
    """Checks the fields of a file's records, whose files lie below `root`, and counts what cannot be learned from.

    odd: (record, answer) of those that are in another form. lost: names of files that are missing, one for each
    record that lacks any.
    """

    def __init__(self, file: Path, root: Path) -> None:
        self.file, self.root = file, root
        self.odd: list[tuple[int, str]] = []
        self.lost: list[str] = []
        self._listed: dict[str, frozenset[str]] = {}
        self._below: dict[str, str] = {}

    def fail(self, number: int, name: str, expected: str) -> UsageError:
        """What is wrong with a field of a record."""
        return UsageError(f"{self.file}: record {number}: field {name!r}: expected {expected}")

    def fields(self, number: int, record: Any, expected: str) -> Mapping[str, Any]:
        """A record, which has to be an object."""
        if not isinstance(record, dict):
            raise UsageError(f"{self.file}: record {number}: expected an object{expected}")
        return record

    def text(self, number: int, name: str, value: Any) -> str:
        """A text of a field; like ones take memory once."""
        if not isinstance(value, str) or not value.strip():
            raise self.fail(number, name, "a text")
        return sys.intern(value)

    def below(self, number: int, name: str, value: Any) -> str:
        """A path of a field, which names a file below the root; frames are named again and again."""
        if not isinstance(value, str) or value not in self._below:
            if not isinstance(value, str) or not value or not stays_below(value):
                raise self.fail(number, name, f"{BELOW}, found {str(value)[:80]!r}")
            self._below[value] = value
        return self._below[value]

    def turns(self, number: int, turns: Any) -> tuple[tuple[str, str], ...]:
        """(question, answer) of every turn of a conversation."""
        if not isinstance(turns, list) or not turns or len(turns) % 2:
            raise self.fail(number, "conversations", "turns of human and gpt by turns")
        for place, turn in enumerate(turns):
            role = _ROLES[place % 2]
            if not isinstance(turn, dict) or turn.get("from") != role or not isinstance(turn.get("value"), str):
                told = f'an object with "from": "{role}" and a text as value'
                raise self.fail(number, f"conversations[{place}]", told)
        texts = [turn["value"] for turn in turns]
        return tuple(zip(texts[::2], texts[1::2], strict=True))

    def has(self, name: str) -> bool:
        """Whether there is such a file; every folder is listed once, for sets name hundreds of thousands."""
        folder, _, own = name.rpartition("/")
        if folder not in self._listed:
            there = self.root / folder
            self._listed[folder] = frozenset(os.listdir(there) if there.is_dir() else ())
        return own in self._listed[folder]

    def left_out(self, example: str, lost: str) -> tuple[str, ...]:
        """Lines on `odd` and `lost`. example: an answer as it should be. lost: what records without files do."""
        told = []
        if self.odd:
            number, answer = self.odd[0]
            told.append(
                f"{self.file}: {len(self.odd)} answers name no action and are left out, first record {number}: "
                f"expected one such as {example!r}, found {answer[:80]!r}"
            )
        if self.lost:
            told.append(
                f"{self.file}: {len(self.lost)} records lack files and {lost}, first {self.root / self.lost[0]}; "
                "extract the archives of images and videos completely"
            )
        return tuple(told)
