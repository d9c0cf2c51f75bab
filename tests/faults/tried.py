"""What was tried against vlnbench, how often, and what happened: behind docs/findings/reliability.md."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from vlnbench.util.durable.files import write_json

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Tried:
    """One thing that was tried. what: its kind and name. command: which does it again. tried: how often.

    commit: of the program, with a plus sign where files differed from it. happened: outcome -> how often. wrong:
    outcomes that should not be. more: whatever else was measured.
    """

    what: str
    command: str
    commit: str
    tried: int
    happened: dict[str, int]
    wrong: int
    more: dict[str, Any] = field(default_factory=dict)


@cache
def commit() -> str:
    """The commit of this checkout."""
    git = ["git", "-C", str(ROOT)]
    named = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    return named.stdout.strip() + "+" * bool(changed.stdout.strip())


def read_tried(path: Path) -> Tried | None:
    """What a file says of one thing; None where there is no file."""
    return Tried(**json.loads(path.read_text())) if path.exists() else None


def write_tried(path: Path, tried: Tried) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(tried))
