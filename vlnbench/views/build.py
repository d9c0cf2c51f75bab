"""From what lies at some paths to the page, as a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vlnbench.report.page import Built, check_folder, write
from vlnbench.views.find import find
from vlnbench.views.page import payload, render


def build_view(paths: Sequence[Path], out: Path, data_root: Path, env: str) -> Built:
    """Write the page of all runs, trainings, matrices and leaderboards at `paths` and below; `out` is replaced.

    Instructions, reference paths and maps come from datasets and scenes below `data_root`, where they are. Raises
    UsageError for paths that hold none of these and a page that cannot be written.
    """
    found = find(paths)
    check_folder(out)
    data, shown = payload(found, out, data_root, env)
    return write(out, render(data), len(shown), data["notes"])
