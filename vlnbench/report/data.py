"""A recorded run, read for its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vlnbench.errors import UsageError
from vlnbench.evaluation.columns.read import SECONDS, read_places
from vlnbench.evaluation.recorded import TabledRun, load_table, remake_split
from vlnbench.evaluation.records import Row, RowKey, each_trajectory
from vlnbench.evaluation.summary import Summary, summarize_table
from vlnbench.interfaces import Episode
from vlnbench.report.answers import Said, read_said
from vlnbench.report.failures import Ending, how_ended
from vlnbench.report.walks import Walk, walk
from vlnbench.util.durable.json_stream import collector_off


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One row with what belongs to it. walk: None if it broke; episode: None without the dataset."""

    row: Row
    ending: Ending
    walk: Walk | None
    episode: Episode | None


MOST_EPISODES = 15_000
"""Episodes that a page holds, so that a browser can show it; tables are of all. RxR-CE val_unseen has 13,652."""


@dataclass(frozen=True, slots=True)
class RunData:
    """A run as the report shows it.

    run: its table has the planned rows. entries: the first `MOST_EPISODES` of them. episodes: by id, None without
    the dataset. scenes_dir: folder that scene ids are relative to, None without the dataset; missing: why there is
    no dataset. said: what models said in the entries.
    """

    run: TabledRun
    summary: Summary
    entries: tuple[ReportRow, ...]
    episodes: Mapping[str, Episode] | None
    scenes_dir: Path | None
    missing: str | None
    said: Said = field(default_factory=Said)

    def quantity(self, of: Callable[[Episode], float | str | None]) -> list[float | str | None]:
        """What is known of the episode of each row; None without the dataset."""
        if self.episodes is None:
            return [None] * len(self.run.table)
        known = {name: of(episode) for name, episode in self.episodes.items()}
        return [known[name] for name in self.run.table.names()]


def read_run(folder: Path, data_root: Path) -> RunData:
    """Read a run folder, and its episodes where the dataset of the run lies below `data_root`.

    Raises UsageError if the folder is no run folder, is broken, or holds no row.
    """
    run = load_table(folder, SECONDS)
    episodes: dict[str, Episode] | None = None
    scenes_dir, missing = None, None
    try:
        plan, episode_set = remake_split(run, data_root)
    except UsageError as error:
        missing = str(error)
    else:
        place = {key: i for i, key in enumerate(zip(run.table.names(), run.table.repeat.tolist(), strict=True))}
        planned = [(key[2], key[3]) for key, _, _ in plan.units()]
        run = replace(run, table=run.table.take([place[key] for key in planned if key in place]))
        episodes = {episode.episode_id: episode for episode in plan.episodes}
        scenes_dir = episode_set.scenes_dir
    table = run.table
    if not len(table):
        raise UsageError(f"{folder}: no episode has finished yet; there is nothing to report")
    with collector_off():
        rows = read_places(folder, table, range(min(MOST_EPISODES, len(table))))
        walked = _walks(run, rows)
    entries = tuple(
        ReportRow(row, ended, walked.get(row.key), episodes[row.episode_id] if episodes else None)
        for row, ended in zip(rows, how_ended(rows), strict=True)
    )
    summary = summarize_table(table, run.identity, run.n_planned * run.repeats)
    said = read_said(folder, [row.key for row in rows])
    return RunData(run, summary, entries, episodes, scenes_dir, missing, said)


def _walks(run: TabledRun, rows: Sequence[Row]) -> dict[RowKey, Walk]:
    """What is shown of the trajectories of some rows of a run."""
    if len(rows) == len(run.table):
        return {key: walk(trajectory) for key, trajectory in each_trajectory(run.folder)}
    found, wanted = {}, {row.key for row in rows}
    in_order = len(run.attempts) <= 1 and bool(np.all(run.table.lines[1:] > run.table.lines[:-1]))
    last = next((row.key for row in reversed(rows) if not row.failed), None)
    for key, trajectory in each_trajectory(run.folder, wanted):
        found[key] = walk(trajectory)
        if in_order and key == last:  # rows and trajectories come together: what follows is of others
            break
    return found
