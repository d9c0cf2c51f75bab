"""Messages that docs/reference/messages.md explains are messages of the program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.docs.pages import ROOT, document

PAGE = document("messages.md")


def messages() -> list[str]:
    """What stands in the first column of the tables, placeholders cut out."""
    cells = re.findall(r"^\| `([^|]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [part.strip() for cell in cells for part in cell.split("…")]


def texts() -> Iterator[str]:
    """All strings of the program, those with values in them in one piece."""
    for folder in ("vlnbench", "agents", "envs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
                    yield "".join(map(str, parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_every_message_that_is_explained_is_one() -> None:
    known = "\n".join(texts())
    found = messages()
    assert len(found) > 20
    assert [each for each in found if each not in known] == []
