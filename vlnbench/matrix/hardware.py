"""One matrix file for several machines: section `hardware`, which says by name what is otherwise on each.

A name holds sections of the file (`train`, `evaluate`, `axes`, `keep`, `run`), whose entries take the place of
those of the file. The first name counts where none is asked for; the matrix is called after the one that counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.matrix.fields import check_known, mapping

HARDWARE = "hardware"
CHANGED = ("train", "evaluate", "axes", "keep", "run")


def on_hardware(found: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """The sections of a file as they are on this hardware. Raises UsageError for a name that it does not have."""
    where = f"{path}: {HARDWARE}"
    result = {section: value for section, value in found.items() if section != HARDWARE}
    known = mapping(found.get(HARDWARE), where)
    if not known:
        if name:
            raise UsageError(f"--hardware {name}: {path} has no section {HARDWARE}; leave it out")
        return result
    chosen = name or next(iter(known))
    check_known([chosen], known, f"{where}: name")
    changes = mapping(known[chosen], f"{where}.{chosen}")
    check_known(changes, CHANGED, f"{where}.{chosen}: section")
    for section, change in changes.items():
        if section == "keep":
            result[section] = change
            continue
        own = mapping(found.get(section), f"{path}: {section}")
        result[section] = {**own, **mapping(change, f"{where}.{chosen}.{section}")}
    result["name"] = f"{found.get('name')}_{chosen}"
    return result
