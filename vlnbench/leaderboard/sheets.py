"""A leaderboard's files, and its tables as sheets: whole, or what is asked for, with the best marked.

Of published values a mean is known and no episodes. Two over the same n episodes are told apart by more than what
two runs of one agent differ by in 19 of 20 cases: 1.96 sqrt((p (1 - p) + q (1 - q)) / n) at most, as in the ledger
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

from vlnbench.data.shipped import BENCHMARKS
from vlnbench.errors import UsageError
from vlnbench.evaluation.costs import Hours, format_hours
from vlnbench.leaderboard.board import BY_COLUMN, COLUMNS, Row, Table
from vlnbench.leaderboard.filters import OURS, Filters
from vlnbench.leaderboard.published import Literature, spoken
from vlnbench.util.tables.cells import markdown_cell
from vlnbench.util.tables.sheet import Column, Sheet, Value, markdown_of, written

HOURS = ("wall_h", "agent_h", "simulator_h", "device_h", "device_unit", "hardware")
_NORMAL = 1.959963984540054
"""97.5 % quantile of the normal distribution."""


def render(tables: Sequence[Table]) -> dict[str, str]:
    """The files of a leaderboard: name -> text."""
    sections = (
        f"\n## {markdown_cell(sheet.title)}\n\n{markdown_cell(table.description)}\n\n{markdown_of(sheet)}"
        for table, sheet in ((table, whole(table)) for table in tables)
    )
    return {
        "leaderboard.json": as_json(tables),
        "leaderboard.csv": written([whole(table) for table in tables], "csv") + "\n",
        "leaderboard.md": _PREFACE + "".join(sections),
    }


def as_json(tables: Sequence[Table]) -> str:
    """A list of tables; every row is a line."""
    parts = []
    for table in tables:
        facts = {name: value for name, value in asdict(table).items() if name != "rows"}
        head = json.dumps(facts, ensure_ascii=False)[:-1]
        rows = ",\n".join("  " + json.dumps(asdict(row), ensure_ascii=False) for row in table.rows)
        parts.append(f'{head}, "rows": [\n{rows}\n]}}')
    return "[\n" + ",\n".join(parts) + "\n]\n"


_PREFACE = """# Leaderboard

Made by `vlnbench leaderboard` from `published.json` and `runs/`; do not edit. One table per dataset, split,
protocol and, on RxR-CE, choice of languages. An empty cell is unknown or not published. Rows of this repository
show mean ± SE [95 % interval], clustered by scene; published values come without n, SE and interval unless these
are given. `evidence`: `authors` is their own report, `quoted` their value as others repeat it, `third party` a
measurement of somebody else, `imported` episodes that another program ran and scored. `checked` is when a row was
last held against a source; `leaderboard.csv` and `.json` say which.

`hours` are those that an evaluation took: on the clock (wall), in agents and in simulators, and times the number
of GPUs or, without any, of cores. `GPU-hours` are those of a training, as published. `checkpoint` names released
weights, which [load here](../docs/reference/checkpoints.md#released).

SR [over time](sr_over_time.svg) and [over GPU-hours of training](sr_vs_gpu_hours.svg).
"""


def asked(tables: Sequence[Table], literature: Literature, filters: Filters) -> list[Sheet]:
    """The tables with what filters leave of them. Raises UsageError where that is nothing.

    Filters that leave nothing out, with rows to mark, ask for the tables that hold these.
    """
    sheets, around = [], bool(filters.own) and not filters.narrow
    for table in tables:
        rows = tuple(row for row in table.rows if _is_kept(row, table, filters))
        if rows and not (around and not any(filters.marked([row.method]) for row in rows)):
            sheets.append(_marked(replace(table, rows=rows), literature, filters))
    if not sheets:
        raise UsageError("leaderboard: no row is left; give fewer filters")
    return sheets


def _is_kept(row: Row, table: Table, filters: Filters) -> bool:
    names = [table.dataset, table.protocol, table.protocol.partition(" ")[0]]
    return filters.keep(names, table.split, row.sensors, row.backbone, row.date)


def _marked(table: Table, literature: Literature, filters: Filters) -> Sheet:
    """A table for people who want numbers: without sources and notes, which stay in data."""
    shown = ("method", "evidence", "sensors", "backbone", "extra")
    wanted = filters.measured(list(COLUMNS))
    sheet = whole(table)
    columns = []
    for column in sorted(sheet.columns, key=lambda each: wanted.index(each.name) if each.name in wanted else -1):
        if column.name in wanted:
            columns.append(replace(column, counted=False, best=_best(column, table, literature)))
        elif column.name == "method":
            own = [filters.marked([row.method]) for row in table.rows]
            marks = [
                f"{row.method}{' (PARTIAL)' * bool(row.partial)}{OURS * mine}"
                for row, mine in zip(table.rows, own, strict=True)
            ]
            columns += [replace(column, heading=""), Column("", "method", marks, key=True), Column("own", "", own)]
        elif column.name not in COLUMNS:
            columns.append(column if column.name in shown else replace(column, heading=""))
    note = "marked: neither partial nor privileged, and within what two runs of one agent differ by of the best"
    return Sheet(sheet.title, tuple(columns), (note,))


def whole(table: Table) -> Sheet:
    """Everything that is known of the rows of a table."""
    rows = table.rows

    def fact(name: str, heading: str) -> Column:
        return Column(name, heading, [getattr(row, name) for row in rows])

    hours = [list(asdict(row.hours or Hours()).values()) for row in rows]
    episodes = [f"{row.episodes} (PARTIAL)" if row.partial else row.episodes for row in rows]
    columns = [
        *(Column(name, "", [getattr(table, name)] * len(rows)) for name in ("dataset", "split", "protocol")),
        *(fact(name, name) for name in ("method", "evidence", "sensors", "backbone", "extra")),
        fact("dataset_version", "data"),
        *(fact(name, name) for name in ("languages", "simulator")),
        fact("episodes", ""),
        Column("", "episodes", episodes),
        fact("partial", ""),
        *(
            Column(label, heading, [row.metrics.get(label) for row in rows], counted=True)
            for label, heading in COLUMNS.items()
        ),
        *(Column(name, "", [each[i] for each in hours]) for i, name in enumerate(HOURS)),
        Column("", "hours", [_hours(row.hours) for row in rows]),
        fact("gpu_hours", "GPU-hours"),
        fact("checkpoint", "checkpoint"),
        fact("date", ""),
        fact("source", "source"),
        fact("checked", ""),
        Column("", "checked", [row.checked and row.checked[:10] for row in rows]),
        fact("note", "note"),
    ]
    parts = [f"{table.dataset} {table.split}", f"protocol {table.protocol}"]
    if spoken(table.dataset, ()):
        parts.append(f"languages {table.languages or 'unknown'}")
    return Sheet(", ".join(parts), tuple(columns))


def _hours(found: Hours | None) -> str | None:
    if found is None:
        return None
    text = format_hours(found)
    return (f"{text} ({found.hardware})" if text and found.hardware else text) or None


def _best(column: Column, table: Table, literature: Literature) -> frozenset[int]:
    """Rows that are not told from the best one."""
    fair: dict[int, Value] = {
        i: cell
        for i, (cell, row) in enumerate(zip(column.cells, table.rows, strict=True))
        if isinstance(cell, Value) and not row.partial and "privileged" not in (row.extra or "").split(", ")
    }
    if not fair or (BY_COLUMN[column.name].kind == "meters" and column.name != "NE"):
        return frozenset()  # a longer path is neither better nor worse
    sign = -1.0 if column.name == "NE" else 1.0
    best = max(fair.values(), key=lambda value: sign * value.mean)
    bounded = BY_COLUMN[column.name].kind != "meters"
    n = best.n or _split_size(table, literature)
    return frozenset(
        i
        for i, value in fair.items()
        if abs(best.mean - value.mean) <= (_apart(best, value, n) if bounded else 0.0)
    )


def _apart(a: Value, b: Value, n: int | None) -> float:
    """Points by which two runs of one agent of these means differ at most, over n episodes or those of `b`."""
    least = min(filter(None, (n, b.n)), default=None)
    if least is None:
        return 0.0
    spread = sum(share * (1.0 - share) for share in (a.mean / 100.0, b.mean / 100.0))
    return 100.0 * _NORMAL * math.sqrt(spread / least)


def _split_size(table: Table, literature: Literature) -> int | None:
    """Episodes of the split, where all are meant and their number is known."""
    if spoken(table.dataset, ()):
        return None
    names = {
        name
        for each in literature.protocols.values()
        for data, name in each.benchmarks.items()
        if data == table.dataset
    }
    sizes = (BENCHMARKS[name].splits.get(table.split) for name in sorted(names) if name in BENCHMARKS)
    return next(filter(None, sizes), None)
