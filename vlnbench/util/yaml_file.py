"""YAML files that people write: read with a key allowed once, errors in one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from vlnbench.errors import UsageError

MAX_BYTES = 1_000_000


def read_yaml(path: Path, what: str, sections: Sequence[str]) -> dict[str, Any]:
    """The mapping of sections that a file holds. what: the kind of file, for messages.

    Raises UsageError if it is none, if a key stands twice, and for a file of more than `MAX_BYTES`.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path}: more than {MAX_BYTES:,} bytes; not a {what} file")
        text = path.read_text(encoding="utf-8")
        _check_keys(yaml.compose(text, yaml.SafeLoader), set())
        found = yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError, TypeError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UsageError(f"{path}: not a {what} file in YAML ({reason})") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: expected a mapping of {', '.join(sections)}")
    return found


def _check_keys(node: Any, seen: set[int]) -> None:
    """Refuse mappings in which a key stands twice: YAML would silently take the last one."""
    if id(node) in seen or not isinstance(node, yaml.CollectionNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _check_keys(each, seen)
        return
    names = [key.value for key, _ in node.value]
    for name in names:
        if isinstance(name, str) and names.count(name) > 1:
            raise ValueError(f"{name} stands twice, {str(node.start_mark).strip()}")
    for _, value in node.value:
        _check_keys(value, seen)
