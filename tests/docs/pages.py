"""The documents of the repository, and what is cut out of them to be tested."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "results/README.md", "examples/README.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "agents" / "checkpoints").glob("*/README.md")),
]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`]+)`")
_COMMAND = re.compile(r"(?:^|[\s;/])(?:\S*/)?(?:vlnbench|-m vlnbench)\s+(?P<rest>[a-z].*)")


def document(name: str) -> Path:
    """The page of a name below docs/, whichever part it stands in."""
    (path,) = (ROOT / "docs").rglob(name)
    return path


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of the code blocks."""
    return _FENCE.findall(page.read_text(encoding="utf-8"))


def prose(page: Path) -> str:
    """The text without code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def inline(page: Path) -> list[str]:
    """What stands in backticks, line breaks as spaces."""
    return [" ".join(text.split()) for text in _INLINE.findall(prose(page))]


def commands(text: str) -> Iterator[list[str]]:
    """Arguments of every call of vlnbench in a shell text."""
    text = text.replace("\\\n", " ")
    for line in text.splitlines():
        for part in re.split(r"&&|\|\||\s\|\s|\s&$", line):
            found = _COMMAND.search(part)
            if found:
                yield shlex.split(found["rest"], comments=True)


def code(page: Path, name: str) -> str:
    """The Python block in which a class is defined."""
    (text,) = (text for language, text in blocks(page) if language == "python" and f"class {name}(" in text)
    return text
