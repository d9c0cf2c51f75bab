"""Published rows: the file `published.json`, and the leaderboard that is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.judge import Builder
from tests.fuzz.values import changed_json
from vlnbench.leaderboard.board import make_tables
from vlnbench.leaderboard.published import read_published
from vlnbench.leaderboard.sheets import render

NAME = "published.json"
ROOT = Path(__file__).parents[3]


@cache
def honest() -> bytes:
    """Six of the committed rows."""
    root = json.loads((ROOT / "results" / NAME).read_bytes())
    rows = root["rows"]
    return json.dumps({**root, "rows": rows[:: max(1, len(rows) // 6)][:6]}).encode()


def read(folder: Path) -> None:
    for text in render(make_tables(read_published(folder / NAME), [])).values():
        str(text).encode()


def write(folder: Path, random: Random) -> None:
    (folder / NAME).write_bytes(changed_json(honest(), random, raw=0.15))


def _row(**fields: Any) -> Builder:
    """The honest file with fields of its first row changed."""

    def build(folder: Path) -> None:
        root = json.loads(honest())
        root["rows"][0].update(fields)
        (folder / NAME).write_text(json.dumps(root))

    return build


def _raw(content: Callable[[], bytes]) -> Builder:
    return lambda folder: (folder / NAME).write_bytes(content()) and None


corpus: Mapping[str, tuple[Builder, str]] = {
    "honest": (_raw(honest), ""),
    "a number of 400 digits": (_row(n=10**400), ""),
    "half a character": (_row(method="\ud800"), "published.json: field"),
    "nested too deep": (_raw(lambda: b'{"rows":' + b"[" * 100_000), "published.json: field"),
    "a name of 100,000 characters": (_row(**{"x" * 100_000: 1}), "published.json: field"),
    "a file of 20 MB": (_raw(lambda: b" " * 20_000_000), "more than 8,388,608 bytes"),
}
