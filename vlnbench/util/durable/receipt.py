"""What a finished piece of work was made from, so that asking for it again need not load everything again.

As in make or git, a file counts as unchanged while its size and time of modification are. Whoever wants certainty
deletes the receipt: it saves time and decides nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.util.durable.files import read_object, write_json
from vlnbench.util.machine import PACKAGES, installed_version

RECEIPT = "receipt.json"
_ROOTS = tuple(Path(__file__).parents[3] / name for name in ("vlnbench", "agents", "envs"))


def write_receipt(folder: Path, asked: Mapping[str, Any], files: Iterable[Path]) -> None:
    """Note in a folder what was asked for and which files it was made from.

    asked: anything whose `repr` tells one wish from another. The program's own files are added.
    """
    named = sorted({path.absolute() for path in files})
    write_json(folder / RECEIPT, {"state": _state(asked, named), "files": [str(path) for path in named]})


def is_current(folder: Path, asked: Mapping[str, Any]) -> bool:
    """Whether a folder has a receipt for what is asked for, and nothing has changed since it was written."""
    try:
        found = read_object(folder / RECEIPT)
    except (OSError, UsageError):
        return False
    files = found.get("files")
    if not isinstance(files, list) or not all(isinstance(name, str) for name in files):
        return False
    return found.get("state") == _state(asked, [Path(name) for name in files])


def _state(asked: Mapping[str, Any], files: Iterable[Path]) -> str:
    """Hash of all that may decide the outcome: wishes, files, program, packages and what is seen of a machine."""
    programs = [Path(folder, name) for root in _ROOTS for folder, _, names in os.walk(root) for name in names]
    sources = sorted(path for path in programs if path.suffix == ".py")
    # A folder's time tells whether a file has come or gone.
    listed = [*files, *sorted({path.parent for path in files})]
    values = {
        "asked": {name: repr(value) for name, value in asked.items()},
        "files": [[str(path), *_stamp(path)] for path in [*listed, *sources]],
        "packages": {name: installed_version(name) for name in (*PACKAGES, "habitat-sim", "numba", "tokenizers")},
        "machine": [platform.node(), platform.python_version(), sys.prefix, os.getcwd()],
        "gpus": [os.environ.get("CUDA_VISIBLE_DEVICES"), *sorted(map(str, Path("/dev").glob("nvidia*")))],
    }
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, int] | tuple[None, None]:
    try:
        found = path.stat()
    except OSError:
        return None, None
    return found.st_size, found.st_mtime_ns
