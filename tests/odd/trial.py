"""Has an odd agent or environment evaluated as the command does, and judges what came of it."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import signal
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tests.faults.worlds import write_world
from vlnbench.errors import GpuMemoryError, RunError, UsageError
from vlnbench.evaluation.options import EvalOptions
from vlnbench.evaluation.records import MANIFEST, SUMMARY, Row, read_rows, read_trajectories
from vlnbench.evaluation.session import carry_out
from vlnbench.evaluation.status import format_status, read_status
from vlnbench.evaluation.summary import format_summary
from vlnbench.leaderboard.ranking import rank, rank_sheet
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.executor import Executor
from vlnbench.rollout.inline import Inline
from vlnbench.util.tables.sheet import written
from vlnbench.util.visible import Visible, visible

LONGEST = 600
"""Characters of a line that a person reads."""

LIMIT_S = 20

FINE, ROWS, REFUSED = "as any other", "error rows", "refused"


@dataclass(frozen=True)
class Case:
    """How an evaluation ends: LIMIT_S = 20

    FINE, ROWS whose reason holds `says`, or REFUSED in a line that does."""

    ends: str
    says: str = ""
    agent: str = "random"


@cache
def world() -> Path:
    """Data of twelve episodes without walls."""
    return write_world(Path(mkdtemp(prefix="odd-")))


def judge(
    case: Case,
    folder: Path,
    agent: str,
    env: str,
    executor: Executor | None = None,
    options: AgentOptions | None = None,
) -> None:
    """Evaluate two episodes; fail unless it ends as it should and what is there can be read."""
    options = EvalOptions(
        agent=agent,
        agent_options=options or AgentOptions(),
        benchmark="rxr-ce",
        data_root=world(),
        allow_partial=True,
        episodes=2,
        out=folder,
        env=env,
        max_errors=99,
    )
    with limited(), _heard() as heard:
        ended, said = _ended(options, executor or Inline())
    assert ended != "traceback", said
    assert ended == (REFUSED if case.ends == REFUSED else FINE), said
    assert len(said) < LONGEST, said[:2000]
    told = heard.getvalue() + said
    assert "sk-secret" not in told
    assert visible(told) == told, ascii(told)
    assert max(map(len, told.splitlines()), default=0) < LONGEST + len(str(folder))
    if ended == REFUSED:
        assert "\n" not in said
        assert case.says in said, said
        assert not (folder / SUMMARY).exists()
    if folder.exists():
        rows = _read(folder)
        wanted = {FINE: {"ok"}, ROWS: {"error"}, REFUSED: {row.status for row in rows}}[case.ends]
        assert {row.status for row in rows} == wanted, rows
        for row in rows if case.ends == ROWS else []:
            reason = str(row.reason)
            assert case.says in reason, reason
            assert reason.isprintable()
            assert len(reason) < LONGEST
    else:
        assert case.ends == REFUSED
    if case.ends == FINE:
        assert case.says in told


def _ended(options: EvalOptions, executor: Executor) -> tuple[str, str]:
    try:
        done = carry_out(options, executor)
        return FINE, format_summary(done.summary) and done.remarks
    except (UsageError, RunError, GpuMemoryError) as error:
        return REFUSED, str(error)
    except BaseException:
        return "traceback", traceback.format_exc()[-3000:]


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Ends what never ends."""
    usual = signal.signal(signal.SIGALRM, _stop)
    signal.alarm(LIMIT_S)
    faulthandler.dump_traceback_later(3 * LIMIT_S, exit=True)
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, usual)


class Hang(KeyboardInterrupt):
    """What never ends is ended as by Ctrl-C."""


def _stop(*_: object) -> None:
    raise Hang(f"not done after {LIMIT_S} s")


@contextlib.contextmanager
def _heard() -> Iterator[io.StringIO]:
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard), contextlib.redirect_stdout(Visible(heard)):
        yield heard


def _read(folder: Path) -> list[Row]:
    """The rows of a run that every command can read."""
    rows = read_rows(folder)
    read_trajectories(folder)
    if (folder / MANIFEST).exists():
        format_status(read_status(folder))
    if (folder / SUMMARY).exists():
        written([rank_sheet(ranked) for ranked in rank([folder])], "text")
        json.loads((folder / SUMMARY).read_text())
    return rows
