"""The file tree of docs/reference/architecture.md, from the code: packages with the first sentence about each."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "architecture.md"
PACKAGES = ("vlnbench", "agents", "envs")
BEGIN, END = "<!-- tree: made by `python -m tests.regenerate` -->\n", "<!-- end of tree -->\n"


def draw() -> str:
    """The tree as a Markdown code block."""
    folders = [
        folder.parent
        for package in PACKAGES
        for folder in sorted((ROOT / package).rglob("__init__.py"), key=lambda path: path.parent.parts)
    ]
    names = ["  " * (len(folder.relative_to(ROOT).parts) - 1) + folder.name + "/" for folder in folders]
    width = max(map(len, names)) + 2
    lines = [f"{name:<{width}}{_sentence(folder)}" for name, folder in zip(names, folders, strict=True)]
    return "\n".join(["```", *lines, "```", ""])


def page() -> str:
    """The page with the tree as it should be."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + draw() + END + after


def _sentence(folder: Path) -> str:
    """The first sentence of what a package says about itself."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]
