"""vlnbench from Python: run an evaluation, and read runs as pandas tables.

`vlnbench.load`, `vlnbench.evaluate` and `vlnbench.compare` are these; nothing here is imported before one is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from vlnbench.defaults import AGENT
from vlnbench.errors import UsageError, unknown
from vlnbench.evaluation.choice.shape import SHAPES
from vlnbench.evaluation.options import EvalOptions
from vlnbench.evaluation.recorded import RecordedRun, load_run, remake_plan
from vlnbench.evaluation.session import Evaluated, carry_out
from vlnbench.evaluation.stats import Estimate
from vlnbench.evaluation.summary import METRICS, Metric, Summary, check_scores, format_summary, shown_label, values
from vlnbench.interfaces import Agent, Episode
from vlnbench.leaderboard.compare import compare as compare_runs
from vlnbench.rollout.agent_names import options_type
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.agents import AgentFacts
from vlnbench.rollout.inline import Inline


@dataclass(frozen=True)
class Run:
    """An evaluation that has come to its end: its folder and its summary (intervals clustered by scene)."""

    folder: Path
    summary: Summary

    @property
    def rows(self) -> pd.DataFrame:
        """As `load` of its folder."""
        return load(self.folder)

    @property
    def metrics(self) -> pd.DataFrame:
        """The table that an evaluation ends with, in percent and meters: mean, se, low, high (95 %) and n."""
        found = [(metric, self.summary.metrics[metric.label]) for metric in METRICS]
        lines = {shown_label(metric): _scaled(metric, value) for metric, value in found if value is not None}
        return pd.DataFrame.from_dict(lines, orient="index").convert_dtypes()

    def __str__(self) -> str:
        return format_summary(self.summary)


AnyRun = str | Path | Run


def load(runs: AnyRun | Sequence[AnyRun], data_root: str | Path | None = None) -> pd.DataFrame:
    """One line per episode (and repeat) of one or several run folders, committed ones among them.

    Columns: run, agent, benchmark, split, episode_id, repeat, scene_id, trajectory_id, status, reason; the scores
    (fractions from 0 to 1, meters, counts), where an episode that failed counts as in every table (success 0, no
    distance), so that `load(run)["success"].mean()` is the SR; `seconds ...` and `report ...`. data_root: adds
    instruction, language, length (m, shortest way), turns and words from the dataset of the run that lies there.
    What is missing is `pandas.NA`. `attrs["identity"]` holds the identity of every run by its folder. Raises
    UsageError for a folder that is no run, and for a dataset that is not the run's.
    """
    listed = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    if not listed:
        raise UsageError("load: expected at least one run folder")
    tables, identities = [], {}
    for each in listed:
        run = load_run(_folder(each), trajectories=False)
        table = _table(run)
        if data_root is not None:
            shapes = pd.DataFrame([_shape(episode) for episode in remake_plan(run, Path(data_root)).episodes])
            table = table.merge(shapes, on="episode_id", how="left", validate="m:1")
        tables.append(table)
        identities[str(run.folder)] = run.identity.flat()
    found = pd.concat(tables, ignore_index=True).convert_dtypes()
    found.attrs["identity"] = identities
    return found


def evaluate(agent: str | Agent = AGENT, **options: Any) -> Run:
    """Evaluate an agent, as `vlnbench eval` does, and resume a run that was begun.

    agent: a name, an import string, or an agent itself, which then acts in this process with one simulator.
    options: those of `vlnbench eval` by their names (`split="val_seen"`, `episodes=20`, `where="length<8"`), lists
    for those with several values, and those of the agent. An agent itself whose code lies in no file (as in a
    notebook) needs `out`: what it was changed to cannot be told from what it was. Progress goes to stderr. Raises
    UsageError and RunError as the command.
    """
    if isinstance(agent, type):
        raise UsageError(f"evaluate: expected an agent or a name, found a class: write {agent.__name__}()")
    name = agent if isinstance(agent, str) else type(agent).__name__
    request = _request(name, AgentOptions if not isinstance(agent, str) else options_type(name), options)
    if isinstance(agent, str):
        return _run(carry_out(request))
    executor = _Given(agent)
    if executor.agent.code is None and request.out is None:
        raise UsageError(f"agent {name}: its code lies in no file, so a folder has to be named: out='runs/...'")
    return _run(carry_out(request, executor))


def compare(run_a: AnyRun, run_b: AnyRun) -> pd.DataFrame:
    """Two finished runs of the same episodes: means of both, and B - A, paired by episode, in percent and meters.

    Columns: a, b, difference, its se, low and high (95 %, clustered by scene), n, and by metric. `attrs` hold the
    episodes that only one of them solves (`wins` of B, `losses`), McNemar's `p_value`, and the fields of the
    identity that differ. Raises UsageError as `vlnbench compare`.
    """
    found = compare_runs(_folder(run_a), _folder(run_b))
    lines, labels = [], []
    for metric in METRICS:
        value = found.differences[metric.label]
        if value is None:
            continue
        sides = {"a": value.a.mean * metric.scale, "b": value.b.mean * metric.scale}
        difference = _scaled(metric, value.by_scene)
        lines.append({**sides, "difference": difference.pop("mean"), **difference})
        labels.append(shown_label(metric))
    table = pd.DataFrame(lines, index=labels).convert_dtypes()
    table.attrs = {
        "wins": found.wins,
        "losses": found.losses,
        "p_value": found.p_value,
        "identity": found.identity,
    }
    return table


class _Given(Inline):
    """An agent that is there already, with a simulator in this process."""

    def load(self, name: str, options: AgentOptions) -> AgentFacts:
        return self.agent


def _request(agent: str, kind: type[AgentOptions], options: dict[str, Any]) -> EvalOptions:
    """Options as they were given in Python. Raises UsageError for unknown ones."""
    own = {each.name for each in fields(kind)}
    known = {each.name for each in fields(EvalOptions)} - {"agent", "agent_options"}
    for name in options:
        if name not in known | own:
            raise UsageError(unknown("option", name, known | own))
    given = {name: value for name, value in options.items() if name in known}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    for name in ("data_root", "out"):
        if given.get(name) is not None:
            given[name] = Path(given[name])
    agent_options = kind(**{name: value for name, value in options.items() if name in own})
    return EvalOptions(agent=agent, agent_options=agent_options, **given)


def _run(done: Evaluated) -> Run:
    return Run(done.folder, done.summary)


def _folder(run: AnyRun) -> Path:
    return run.folder if isinstance(run, Run) else Path(run)


def _table(run: RecordedRun) -> pd.DataFrame:
    rows = list(run.rows.values())
    check_scores([row for row in rows if row.status == "ok"])
    identity = run.identity
    lines = [
        {
            "run": str(run.folder),
            "agent": identity.agent,
            **{name: getattr(row, name) for name in _ROW},
            **row.scores,
            **{f"seconds {part}": value for part, value in row.seconds.items()},
            **{f"report {name}": value for name, value in row.report.items()},
        }
        for row in rows
    ]
    scored = [] if any(row.status == "unscored" for row in rows) else rows
    by_key = {row.key: line for row, line in zip(rows, lines, strict=True)}
    for metric in METRICS:
        for row, value in values(metric, scored):
            by_key[row.key][metric.field] = value
    return pd.DataFrame(lines)


_ROW = ("benchmark", "split", "episode_id", "repeat", "scene_id", "trajectory_id", "status", "reason")


def _shape(episode: Episode) -> dict[str, Any]:
    told = {name: of(episode) for name, of in SHAPES.items()}
    said = {"instruction": episode.instruction, "language": episode.language}
    return {"episode_id": episode.episode_id, **said, **told}


def _scaled(metric: Metric, value: Estimate) -> dict[str, float | int | None]:
    numbers = {name: asdict(value)[name] for name in ("mean", "se", "low", "high")}
    scaled = {name: None if x is None else x * metric.scale for name, x in numbers.items()}
    return {**scaled, "n": value.n}
