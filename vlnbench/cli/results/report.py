"""The command that makes the report of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from vlnbench.defaults import ENV


@dataclass(frozen=True)
class Report:
    """Write the report of a run: one HTML file with tables, maps and every episode. Opens offline."""

    run_folder: Positional[Path]
    """Run folder."""
    out: Path | None = None
    """HTML file to write; default report.html in the run folder."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/. Without them: no instructions, no maps."""
    video: int = 0
    """Embed videos of this many episodes: first those in the run folder, then new ones of every kind of ending."""
    frames: int = 0
    """Show what the camera saw at every step of this many episodes, beside map and answers (about 0.5 MB each)."""
    env: str = ENV
    """Environment that draws maps and pictures, as for `vlnbench eval`."""

    def run(self) -> None:
        from vlnbench.report.build import build_report

        built = build_report(self.run_folder, self.out, self.data_root, self.video, self.env, self.frames)
        for note in built.notes:
            print(f"left out: {note}")
        print(f"{built.count} episodes, {built.size / 1e6:.1f} MB: {built.path}")
