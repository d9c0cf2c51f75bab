"""What only a GPU can tell, in one command that can be stopped and given again.

    python -m benchmarks.gpu_evidence --out DIR [--limit-minutes 9] [--pieces NAME ...]
    python -m benchmarks.gpu_evidence --out DIR --toy
    python -m benchmarks.gpu_evidence --page [DIR/evidence.json]
    python -m benchmarks.gpu_evidence --fit DIR/evidence.json

README.md beside this file says how to set up a machine for it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tabulate import tabulate

from benchmarks.gpu_evidence import record, runner
from benchmarks.gpu_evidence.pieces import PIECES, choose, find
from vlnbench.errors import UsageError
from vlnbench.util.durable.locks import locked
from vlnbench.util.machine import git_revision
from vlnbench.util.progress import say


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_evidence",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--out", type=Path, help="folder of evidence.json and log.txt; what is there is not repeated"
    )
    made.add_argument(
        "--resume-from", type=Path, metavar="FILE", help="evidence.json to go on with, where --out has none"
    )
    made.add_argument("--pieces", nargs="+", default=[], metavar="NAME", help="PIECE or PIECE/CASE; default all")
    made.add_argument("--again", nargs="+", default=[], metavar="NAME", help="what is repeated though it is known")
    made.add_argument(
        "--limit-minutes", type=float, default=40.0, help="nothing is begun that would not end by then"
    )
    made.add_argument("--toy", action="store_true", help="everything at toy size on the CPU")
    made.add_argument("--commit", help="of the code, where the checkout came without git")
    made.add_argument(
        "--list", action="store_true", help="the pieces with minutes, memory and what they lack here"
    )
    made.add_argument("--page", nargs="?", const="", metavar="FILE", help="write docs/gpu.md and its plots")
    made.add_argument(
        "--fit", type=Path, metavar="FILE", help="print the planner's constants as a record has them"
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, also where cases failed; 2 for a mistake; 3 where time was too short for all."""
    options = parser().parse_args(arguments)
    try:
        if options.list:
            print(table())
        elif options.page is not None:
            from benchmarks.gpu_evidence.page import write

            write(record.read(Path(options.page)) if options.page else None)
        elif options.fit:
            from benchmarks.gpu_evidence.fit import fit, measured

            print(fit(measured(record.read(options.fit))))
        else:
            return ask(options)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def ask(options: argparse.Namespace) -> int:
    """Run what is to be run."""
    if options.out is None:
        raise UsageError("--out: give the folder for evidence.json")
    if not 0 < options.limit_minutes < float("inf"):
        raise UsageError(f"--limit-minutes {options.limit_minutes}: expected a number above 0")
    cases = choose(options.pieces)
    for name in options.again:
        find(name)
    here = record.describe(options.toy)
    path = options.out / record.FILE
    if options.resume_from is not None and not path.exists():
        record.read(options.resume_from)
    options.out.mkdir(parents=True, exist_ok=True)
    with locked(options.out):
        if options.resume_from is not None and not path.exists():
            shutil.copyfile(options.resume_from, path)
        found = record.Record.open(path, here, options.toy)
        found.begin(options.commit or git_revision())
        session = runner.Session(options.toy, options.limit_minutes, frozenset(options.again))
        left = runner.run(cases, found, session)
    if left:
        say(f"{left} cases are left: give the command again")
    return 3 if left else 0


def table() -> str:
    """Every case with what it takes."""
    rows = []
    for piece in PIECES:
        for case in piece.cases:
            missing = ", ".join(name for name in case.needs if find_spec(name) is None)
            rows.append([f"{piece.name}/{case.name}", f"{case.minutes:g}", f"{case.gb:g}", missing])
    total = sum(case.minutes for piece in PIECES for case in piece.cases)
    rows.append(["all", f"{total:g}", "", ""])
    return str(tabulate(rows, headers=["case", "minutes", "GB", "not installed here"], disable_numparse=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
