"""From what lies at some paths to the page, as a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlnbench.errors import UsageError
from vlnbench.util.durable.files import write_bytes
from vlnbench.views.find import find
from vlnbench.views.page import payload, render


@dataclass(frozen=True, slots=True)
class Built:
    """A page that has been written: where, its bytes, its runs, and what is left out of it."""

    path: Path
    size: int
    runs: int
    notes: tuple[str, ...]


def build_view(paths: Sequence[Path], out: Path, data_root: Path, env: str) -> Built:
    """Write the page of all runs, trainings, matrices and leaderboards at `paths` and below; `out` is replaced.

    Instructions, reference paths and maps come from datasets and scenes below `data_root`, where they are. Raises
    UsageError for paths that hold none of these and a page that cannot be written.
    """
    found = find(paths)
    if not out.parent.is_dir():
        raise UsageError(f"{out}: there is no folder {out.parent}; make it or choose another --out")
    data, shown = payload(found, out, data_root, env)
    page = render(data).encode(errors="replace")
    try:
        write_bytes(out, page)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written ({error.strerror}); choose another --out") from error
    return Built(out, len(page), len(shown), tuple(data["notes"]))
