"""What only a GPU can tell: what `vlnbench doctor --gpu-evidence` does. README.md says how to set up a machine."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu_evidence import record, runner
from benchmarks.gpu_evidence.pieces import MINUTES, Case, Piece, every, first
from vlnbench.errors import RunError
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.durable.locks import locked
from vlnbench.util.machine import git_revision
from vlnbench.util.progress import say

PAGE = "evidence.md"


def measure(out: Path, toy: bool = False) -> None:
    """Ask for `MINUTES` what is most worth knowing or, once that is known, what is left; then write the page.

    toy: tiny shapes on the CPU. Raises RunError where cases of it are left, have failed, or do not answer in
    float32 as was recorded.
    """
    here = record.describe(toy)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        found = record.Record.open(out / record.FILE, here, toy)
        cases = asked(found)
        found.begin(git_revision())
        left = runner.run(cases, found, runner.Session(toy, MINUTES))
    from benchmarks.gpu_evidence.page import planned, text

    write_bytes(out / PAGE, text(found.content, planned(), {}).encode())
    say(f"{out / record.FILE} holds what was found, {out / PAGE} shows it")
    wrong = record.wrong(found.content)
    if left or wrong:
        again = [f"{left} cases are left: give the command again"] if left else []
        raise RunError("; ".join([*wrong, *again]))
    if more := sum(found.is_open(*each) for each in asked(found)):
        say(f"what is most worth knowing is known; the same command asks {more} further cases")


def asked(found: record.Record) -> list[tuple[Piece, Case]]:
    """The cases of a session: those of `FIRST`, and all once nothing of these is open."""
    cases = first()
    return cases if any(found.is_open(*each) for each in cases) else every()
