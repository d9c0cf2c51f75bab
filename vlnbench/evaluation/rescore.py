"""Metrics anew from recorded trajectories: no simulator, no agent."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vlnbench.errors import UsageError
from vlnbench.evaluation.metrics import METRICS_VERSION, score
from vlnbench.evaluation.recorded import RecordedRun, load_run, remake_plan
from vlnbench.evaluation.records import MANIFEST, ROWS, SUMMARY, TRAJECTORIES, Row, Score
from vlnbench.evaluation.summary import Summary, format_summary, summarize
from vlnbench.interfaces import Episode
from vlnbench.util.durable.files import encode_line, pack, write_bytes, write_json
from vlnbench.util.durable.locks import locked

BACKUP = f"{ROWS}.before-rescore"


@dataclass(frozen=True, slots=True)
class Rescored:
    """Rows of a run under today's metrics.

    changed: number of rows by changed field; n_changed: rows with at least one. Rows that ended in an error stay
    as they are.
    """

    run: RecordedRun
    rows: list[Row]
    summary: Summary
    n_changed: int
    changed: dict[str, int]


def rescore(folder: Path, data_root: Path, *, write: bool = False) -> Rescored:
    """Score every recorded trajectory of a run again; with `write`, replace its rows and summary.

    Goal distances are those recorded with every pose; ground truth comes from the dataset that the manifest names.
    Written files are replaced one by one, each in one step; rows that changed leave a copy of the old file in
    `episodes.jsonl.before-rescore`, but for a committed run. Raises UsageError if the dataset is not the run's, if
    a trajectory is missing, or if another process is writing the run.
    """
    if not write:
        return _rescored(folder, data_root)
    if not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder}: not a run folder ({MANIFEST} is missing)")
    with locked(folder):
        result = _rescored(folder, data_root)
        lines = b"".join(encode_line(asdict(row)) for row in result.rows)
        committed = not (folder / ROWS).exists()  # compressed, without a summary
        if committed and result.n_changed:
            write_bytes(folder / f"{ROWS}.gz", pack(lines))
        elif result.n_changed:
            write_bytes(folder / BACKUP, (folder / ROWS).read_bytes())
            write_bytes(folder / ROWS, lines)
        if not committed:
            write_json(folder / SUMMARY, asdict(result.summary))
        write_json(folder / MANIFEST, {**result.run.manifest, "metrics_version": METRICS_VERSION})
    return result


def format_rescored(result: Rescored, write: bool) -> str:
    """The table of a rescored run, and what changed."""
    lines = [format_summary(result.summary), f"{result.n_changed} of {len(result.rows)} rows changed"]
    if result.changed:
        lines[-1] += f" ({', '.join(f'{name} in {count}' for name, count in result.changed.items())})"
    if not write:
        lines.append("nothing was written; --write replaces rows and summary")
    elif result.n_changed and (result.run.folder / ROWS).exists():
        lines.append(f"written: {result.run.folder}; the rows before: {result.run.folder / BACKUP}")
    else:
        lines.append(f"written: {result.run.folder}")
    return "\n".join(lines)


def _rescored(folder: Path, data_root: Path) -> Rescored:
    run = load_run(folder)
    if run.identity.imported:
        raise UsageError(f"{folder}: imported results; run `vlnbench import` again on their files")
    plan = remake_plan(run, data_root)
    units = list(plan.units())
    episodes = {key: episode for key, episode, _ in units}
    distance = plan.benchmark.success_distance_m
    rows = [_score_row(run, row, episodes.get(row.key), distance) for row in run.rows.values()]
    differences = [_differences(run.rows[row.key].scores, row.scores) for row in rows]
    return Rescored(
        run=run,
        rows=rows,
        summary=summarize(rows, [key for key, _, _ in units], run.identity),
        n_changed=sum(map(bool, differences)),
        changed=dict(Counter(name for names in differences for name in names)),
    )


def _score_row(run: RecordedRun, row: Row, episode: Episode | None, success_distance_m: float) -> Row:
    if row.status != "ok":
        return row
    where = f"{run.folder / TRAJECTORIES}: episode {row.episode_id}, repeat {row.repeat}"
    if episode is None:
        raise UsageError(f"{run.folder / ROWS}: episode {row.episode_id} is not among the run's planned episodes")
    if row.key not in run.trajectories:
        raise UsageError(f"{where}: the trajectory is missing; run the episode again")
    try:
        scores = asdict(score(run.trajectories[row.key], episode, success_distance_m))
    except ValueError as error:
        raise UsageError(f"{where}: cannot be scored ({error})") from error
    return replace(row, scores=scores)


def _differences(before: dict[str, Score], after: dict[str, Score]) -> list[str]:
    """Fields that differ by more than the last digits in which two machines may differ."""
    return [name for name in {**before, **after} if not _equal(name, before, after)]


def _equal(name: str, before: dict[str, Score], after: dict[str, Score]) -> bool:
    if name not in before or name not in after:
        return False
    a, b = before[name], after[name]
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return a == b
