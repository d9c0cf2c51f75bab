"""A recorded run, read for its report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from vlnbench.errors import UsageError
from vlnbench.evaluation.choice.shape import corners
from vlnbench.evaluation.recorded import RecordedRun, load_run, remake_split
from vlnbench.evaluation.records import Row
from vlnbench.evaluation.summary import Summary, summarize
from vlnbench.interfaces import Episode, Trajectory
from vlnbench.report.failures import Ending, ending


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One row with what belongs to it. trajectory: None if it broke; episode: None without the dataset."""

    row: Row
    ending: Ending
    trajectory: Trajectory | None
    episode: Episode | None

    @property
    def start_distance(self) -> float | None:
        """Geodesic distance from the start to the nearest goal, meters."""
        if self.row.status == "ok":
            value = self.row.scores["geodesic_start"]
            return None if value is None else float(value)
        return self.episode.geodesic_distance if self.episode else None

    @property
    def words(self) -> int | None:
        """Words of the instruction."""
        return len(self.episode.instruction.split()) if self.episode else None

    @property
    def turns(self) -> int | None:
        """Corners of the reference path."""
        return corners(self.episode.reference_path) if self.episode and self.episode.reference_path else None


@dataclass(frozen=True, slots=True)
class RunData:
    """A run as the report shows it.

    scenes_dir: folder that scene ids are relative to, None without the dataset; missing: why there is no dataset.
    """

    run: RecordedRun
    summary: Summary
    entries: tuple[ReportRow, ...]
    scenes_dir: Path | None
    missing: str | None


def read_run(folder: Path, data_root: Path) -> RunData:
    """Read a run folder, and its episodes where the dataset of the run lies below `data_root`.

    Raises UsageError if the folder is no run folder, is broken, or holds no row.
    """
    run = load_run(folder)
    episodes: dict[str, Episode] | None = None
    scenes_dir, missing = None, None
    try:
        plan, episode_set = remake_split(run, data_root)
    except UsageError as error:
        missing = str(error)
        keys = list(run.rows)
    else:
        keys = [key for key, _, _ in plan.units()]
        episodes = {episode.episode_id: episode for episode in plan.episodes}
        scenes_dir = episode_set.scenes_dir
    rows = [run.rows[key] for key in keys if key in run.rows]
    if not rows:
        raise UsageError(f"{folder}: no episode has finished yet; there is nothing to report")
    summary = replace(summarize(rows, keys, run.identity), n_planned=run.n_planned * run.repeats)
    entries = tuple(
        ReportRow(row, ending(row), run.trajectories.get(row.key), episodes[row.episode_id] if episodes else None)
        for row in rows
    )
    return RunData(run, summary, entries, scenes_dir, missing)
