"""The command `vlnbench export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from vlnbench.defaults import ENV

CLOSING = (
    "note: the server that scores these files is being closed (https://github.com/jacobkrantz/VLN-CE/issues/74), "
    "and the test split has no other; what can be compared is val_unseen (vlnbench leaderboard)"
)


@dataclass(frozen=True)
class Export:
    """Write a run in the submission format of a leaderboard, or episodes of it as recordings of Rerun."""

    run_folder: Positional[Path]
    """Run folder."""
    format: Literal["evalai-r2r", "rxr", "rerun"]
    """R2R-CE (EvalAI, whose server is being closed), RxR-Habitat, or what was seen, done and said step by step,
    for `rerun FILE.rrd`."""
    out: Path
    """File to write. rerun: .rrd for one episode, otherwise a folder."""
    data_root: Path = Path("data")
    """Folder that holds the dataset of the run, for rxr, and the scenes, for the frames of rerun."""
    allow_partial: bool = False
    """Export a run that does not cover its split; rerun does not ask."""
    episodes: int = 1
    """With rerun: this many episodes, first those with answers that could not be read, then of each ending."""
    episode_ids: tuple[str, ...] = ()
    """With rerun: these episodes."""
    env: str = ENV
    """With rerun: environment that shows the frames, as for `vlnbench eval`."""
    force: bool = False
    """Overwrite the file."""

    def run(self) -> None:
        if self.format == "rerun":
            self._record()
            return
        from vlnbench.leaderboard.export import export

        options = {"allow_partial": self.allow_partial, "force": self.force}
        count = export(self.run_folder, self.out, self.format, self.data_root, **options)
        print(f"{count} episodes as {self.format}: {self.out}")
        if self.format == "evalai-r2r":
            print(CLOSING)

    def _record(self) -> None:
        from vlnbench.report.recording import write_recordings

        found = write_recordings(
            self.run_folder,
            self.out,
            self.data_root,
            episodes=self.episodes,
            episode_ids=self.episode_ids,
            env=self.env,
            force=self.force,
        )
        for path in found:
            print(f"{path.stat().st_size / 1e6:.1f} MB: {path}")
