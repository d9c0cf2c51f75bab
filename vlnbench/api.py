"""vlnbench from Python: run an evaluation, and read runs as pandas tables.

`vlnbench.load`, `evaluate`, `compare`, `rank` and `leaderboard_rows` are these; nothing here is imported before
one is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from vlnbench.defaults import AGENT
from vlnbench.errors import UsageError, unknown
from vlnbench.evaluation.answers.steps import COLUMNS, KEY, steps_of
from vlnbench.evaluation.choice.shape import SHAPES
from vlnbench.evaluation.columns.read import table_of
from vlnbench.evaluation.options import EvalOptions
from vlnbench.evaluation.recorded import RecordedRun, load_run, remake_plan
from vlnbench.evaluation.session import Evaluated, carry_out
from vlnbench.evaluation.stats import Estimate, p_value
from vlnbench.evaluation.summary import METRICS, Metric, Summary, check_scores, format_summary, shown_label, values
from vlnbench.interfaces import Agent, Episode
from vlnbench.leaderboard.board import load as load_board
from vlnbench.leaderboard.board import make_tables
from vlnbench.leaderboard.compare import compare as compare_runs
from vlnbench.leaderboard.filters import Filters
from vlnbench.leaderboard.ranking import rank as rank_runs
from vlnbench.leaderboard.ranking import rank_sheet
from vlnbench.leaderboard.sheets import asked
from vlnbench.matrix.sheet import sheet_of
from vlnbench.rollout.agent_names import options_type
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.agents import AgentFacts
from vlnbench.rollout.inline import Inline
from vlnbench.util.tables.sheet import Sheet, data


@dataclass(frozen=True)
class Run:
    """An evaluation that has come to its end: its folder and its summary (intervals clustered by scene)."""

    folder: Path
    summary: Summary

    @property
    def rows(self) -> Rows:
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


class Rows(pd.DataFrame):
    """A table of episodes as `load` makes it, or some lines of one."""

    @property
    def _constructor(self) -> type[Rows]:
        return Rows

    @property
    def steps(self) -> pd.DataFrame:
        """One line per step of these episodes: run, benchmark, split, episode_id, repeat, step (from 0), action.

        Before it: x, y, z (meters), yaw (radians), distance_to_goal; after it: collided. What the model said where
        it was asked: text, parsed (names of actions), unparsable, note, prompt_tokens, images, answer_tokens,
        log_probability, seconds, tries. asked: the step of the answer that decided. The column with the numbers of
        steps is `load(run)["steps"]`.

        Needs the columns run, benchmark, split, episode_id and repeat. What is missing is `pandas.NA`.
        """
        lacking = [name for name in ("run", *KEY) if name not in self.columns]
        if lacking:
            raise UsageError(
                f"steps: the table lacks the column {lacking[0]!r}, by which runs and episodes are found"
            )
        parts = []
        for folder, rows in self.groupby("run", sort=False):
            keys = list(rows[list(KEY)].itertuples(index=False, name=None))
            parts.append(pd.DataFrame({"run": str(folder), **steps_of(Path(str(folder)), keys)}))
        empty = pd.DataFrame(columns=["run", *COLUMNS])
        return (pd.concat(parts, ignore_index=True) if parts else empty).convert_dtypes()


AnyRun = str | Path | Run


def load(runs: AnyRun | Sequence[AnyRun], data_root: str | Path | None = None) -> Rows:
    """One line per episode (and repeat) of one or several run folders, committed ones among them.

    Columns: run, agent, benchmark, split, episode_id, repeat, scene_id, trajectory_id, status, reason; the scores
    (fractions from 0 to 1, meters, counts), where an episode that failed counts as in every table (success 0, no
    distance), so that `load(run)["success"].mean()` is the SR; `seconds ...` and `report ...`. data_root: adds
    instruction, language, length (m, shortest way), turns and words from the dataset of the run that lies there.
    What is missing is `pandas.NA`. `.steps` is the table of steps of these episodes, with what the model said; see
    `Rows`. `attrs["identity"]` holds the identity of every run by its folder. Raises
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
    found = Rows(pd.concat(tables, ignore_index=True).convert_dtypes())
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


def compare(run_a: AnyRun, run_b: AnyRun, common: bool = False) -> pd.DataFrame:
    """Two finished runs of the same episodes: means of both, and B - A, paired by episode, in percent and meters.

    Columns: a, b, difference, its se, low and high (95 %, clustered by scene), n and p, by metric. `attrs` hold
    the episodes that only one of them solves (`wins` of B, `losses`), McNemar's `p_value`, and the fields of the
    identity that differ. common: of runs of other episodes compare those that both have. Raises UsageError as
    `vlnbench compare`.
    """
    found = compare_runs(_folder(run_a), _folder(run_b), common)
    lines, labels = [], []
    for metric in METRICS:
        value = found.differences[metric.label]
        if value is None:
            continue
        sides = {"a": value.a.mean * metric.scale, "b": value.b.mean * metric.scale}
        difference = _scaled(metric, value.by_scene)
        p = p_value(value.by_scene)
        lines.append({**sides, "difference": difference.pop("mean"), **difference, "p": p})
        labels.append(shown_label(metric))
    table = pd.DataFrame(lines, index=labels).convert_dtypes()
    table.attrs = {
        "wins": found.wins,
        "losses": found.losses,
        "p_value": found.p_value,
        "identity": found.identity,
    }
    return table


def rank(runs: Sequence[AnyRun] = (), results: str | Path | None = None, **filters: Any) -> pd.DataFrame:
    """Finished runs, best SR first: the columns of `vlnbench rank --format csv`, in percent and meters.

    A mean is several columns: SR, SR_se, SR_low, SR_high (95 %, clustered by scene), SR_n and SR_best, whether it
    is not told from the best. results: a folder with runs/; without `runs` all that are there. filters: options of
    `vlnbench rank` (`split="val_seen"`, `own=["mine"]`). Raises UsageError as the command.
    """
    asked, where = _filters(filters), None if results is None else Path(results)
    tables = rank_runs([_folder(run) for run in runs], where, asked)
    return _frame([rank_sheet(ranked, asked) for ranked in tables])


def leaderboard_rows(results: str | Path = "results", runs: Sequence[AnyRun] = (), **filters: Any) -> pd.DataFrame:
    """Published rows, the runs below `results` and the given ones: columns of `vlnbench leaderboard --format csv`.

    A folder without published.json has the rows that come with vlnbench. filters: options of the command
    (`benchmark="R2R-CE"`, `backbone="qwen"`). Raises UsageError as the command.
    """
    literature, own = load_board(Path(results), [_folder(run) for run in runs])
    return _frame(asked(make_tables(literature, own), literature, _filters(filters)))


def matrix_rows(results: str | Path) -> pd.DataFrame:
    """Settings and references of a matrix, of the folder that holds matrix.json: the columns of matrix.csv.

    Shares from 0 to 1, bytes and seconds. Raises UsageError as `vlnbench matrix table`.
    """
    return _frame([sheet_of(Path(results))])


def _frame(sheets: Sequence[Sheet]) -> pd.DataFrame:
    """Sheets of the same columns as one table; what is missing is `pandas.NA`."""
    tables = [data(sheet) for sheet in sheets]
    joined = {name: [cell for table in tables for cell in table[name]] for name in tables[0]}
    return pd.DataFrame(joined).convert_dtypes()


def _filters(options: dict[str, Any]) -> Filters:
    """Options as they were given in Python: a text where the command takes several is one of them."""
    known = {each.name: each for each in fields(Filters)}
    for name in options:
        if name not in known:
            raise UsageError(unknown("option", name, known))
    several = {name for name, each in known.items() if each.default == ()}
    given: dict[str, Any] = {
        name: tuple([value] if isinstance(value, str) else value) if name in several else value
        for name, value in options.items()
    }
    return Filters(**given)


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
    check_scores(table_of(rows))
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
    by_key = {row.key: line for row, line in zip(rows, lines, strict=True)}
    for metric in METRICS:
        for row, value in values(metric, rows):
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
