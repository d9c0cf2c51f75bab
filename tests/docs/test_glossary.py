"""Names in code use the words of docs/reference/glossary.md, and none that it replaced."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.docs.pages import document

ROOT = Path(__file__).parents[2]
GLOSSARY = document("glossary.md")

RETIRED = {
    "album": "set",
    "bury": "replace",
    "chances": "log-probability",
    "deed": "completion",
    "hear": "receive",
    "judged": "rollout",
    "lean": "fast path",
    "levers": "option",
    "nursery": "fork server",
    "pace": "task",
    "pick": "rollout",
    "relabel": "beta",
    "seat": "slot",
    "site": "launcher",
    "stray": "loss mask",
    "strays": "loss mask",
    "telling": "auxiliary loss",
    "tour": "shared path",
    "tours": "shared path",
}
"""Words that names of classes and options no longer have, and what the glossary says instead."""

RECORDED = {"tours", "relabel"}
"""Options that keep their name: files of matrices and hashes of what was run have it."""


def names(path: Path) -> set[str]:
    """Public classes of a module, and fields of its options."""
    classes = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ClassDef)
    ]
    found = {each.name for each in classes if not each.name.startswith("_")}
    options = [each for each in classes if each.name.endswith("Options")]
    return found | {
        field.target.id
        for each in options
        for field in each.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def test_code_uses_no_retired_word() -> None:
    for folder in ("vlnbench", "envs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in names(path) - RECORDED:
                words = {word.lower() for word in re.findall("[A-Z]?[a-z]+", name)}
                assert not (found := words & set(RETIRED)), f"{path}: {name}: {[RETIRED[word] for word in found]}"


def test_what_replaces_a_retired_word_is_explained() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    explained = {
        word
        for line in text.splitlines()
        if line.startswith("| ")
        for word in line.split("|")[1].strip().split(", ")
    }
    assert {new for new in RETIRED.values() if new not in ("receive", "replace")} <= explained
    assert sorted(RECORDED) == sorted(name for name in RECORDED if f"--{name}" in text)
