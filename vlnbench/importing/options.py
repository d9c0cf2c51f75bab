"""What one import is asked to do: the options of `vlnbench import`. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vlnbench.defaults import ENV


@dataclass(frozen=True)
class ImportOptions:
    """Whose results lie where, and what is known of them that files and their names do not tell."""

    format: str = ""
    """Whose files they are (`vlnbench list` names the formats); default the one that fits."""
    benchmark: str = ""
    """Protocol that they were evaluated with; default not known, and so marked."""
    split: str = ""
    """Split of the benchmark; default as names of files and folders tell."""
    name: str = ""
    """What tables call it, with the mark (imported); default the format."""
    out: Path | None = None
    """Run folder; default runs/<benchmark>/<split>/<name>-<hash>."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/, to check against."""
    env: str = ENV
    """Environment that measures distances where a format holds paths alone, as for `vlnbench eval`."""
