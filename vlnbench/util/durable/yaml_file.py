"""YAML files that people write: read with a key allowed once and within bounds, errors in one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from vlnbench.errors import UsageError
from vlnbench.util.durable.fields import TEXT, short
from vlnbench.util.durable.limits import MAX_SCALAR, MAX_VALUES, MAX_YAML, read_bounded

_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map", "merge")}
_LONGEST = 200
"""Characters of what an error line quotes."""


def read_yaml(path: Path, what: str, sections: Sequence[str]) -> dict[str, Any]:
    """The mapping of sections that a file holds. what: the kind of file, for messages.

    Raises UsageError if it is none, if a key stands twice, and for a file beyond the bounds of
    `vlnbench.util.durable.limits`.
    """
    try:
        loader = yaml.SafeLoader(read_bounded(path, MAX_YAML).decode())
        root = loader.get_single_node()
        if root is not None:
            _check_node(root, {})
            found = loader.construct_document(root)
        else:
            found = None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        reason = ascii(" ".join(str(error).split()) or type(error).__name__)[1:-1][:_LONGEST]
        raise UsageError(f"{path}: not a {what} file in YAML ({reason})") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: expected a mapping of {', '.join(sections)}")
    return found


def _check_node(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Refuse what such a file has no use for; returns how many values a node is with its aliases written out.

    A key that stands twice: YAML would silently take the last one. Anything but text, numbers, lists and mappings.
    Aliases of aliases, by which a short file unfolds to any size. sizes: of nodes that have been looked at, by id.
    """
    size = sizes.get(id(node), 1)
    if size == 0:
        raise ValueError(f"an alias of what it is in, {str(node.start_mark).strip()}")
    if id(node) in sizes:
        return size
    if node.tag not in _TAGS:
        raise ValueError(f"{node.tag}: expected text, numbers, lists and mappings")
    if isinstance(node, yaml.ScalarNode):
        if len(node.value) > MAX_SCALAR or not TEXT.fits(node.value):
            raise ValueError(f"a text of more than {MAX_SCALAR} characters, {str(node.start_mark).strip()}")
        return 1
    sizes[id(node)] = 0
    values = node.value
    if isinstance(node, yaml.MappingNode):
        names: set[Any] = set()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in names:
                raise ValueError(f"{short(key.value)} stands twice, {str(node.start_mark).strip()}")
            names.add(key.value if isinstance(key.value, str) else None)
        values = [each for pair in node.value for each in pair]
    size += sum(_check_node(each, sizes) for each in values)
    if size > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values")
    sizes[id(node)] = size
    return size
