"""The tables of docs/findings/reliability.md, from tests/faults/tried.json: `python -m tests.faults.table FOLDER`
takes records of what was tried from a folder into that file: those that `tests.fuzz`, `tests.crash.points` and
`tests.faults` write with `--record`. `--again WORD` first tries everything anew whose command has that word in it;
an empty word all, which takes days of a core.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tabulate import tabulate

from tests.faults.all_faults import FAULTS
from tests.faults.tried import ROOT, Tried, read_tried
from vlnbench.util.durable.files import write_json

RECORDS = Path(__file__).with_name("tried.json")
PAGE = ROOT / "docs" / "findings" / "reliability.md"
BEGIN, END = "<!-- tables: made by `python -m tests.regenerate` -->", "<!-- end of tables -->"
HOW = {
    "kill": "killed (SIGKILL, all processes)",
    "torn": "killed, and what lies under hidden names cut to half",
    "full": "no space left for that change",
}
LOCKS = {
    "nfs": ", with NFS's locks",
    "ENOLCK": ", without a lock manager (ENOLCK)",
    "ENOSYS": ", without locks (ENOSYS)",
}


def read_records() -> dict[str, Tried]:
    """What was tried, by name."""
    found = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    return {name: Tried(**record) for name, record in found.items()}


def page() -> str:
    """The page with its tables as they should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + _marked(read_records()) + rest.partition(END)[2]


def _marked(records: Mapping[str, Tried]) -> str:
    """The tables between their marks."""
    of = {kind: [each for each in records.values() if each.what.split()[0] in kind.split()] for kind in _TABLES}
    parts = [f"## {title}\n\n{_TABLES[kind](of[kind])}" for kind, title in _TITLES.items() if of[kind]]
    return f"{BEGIN}\n" + "\n\n".join(parts) + f"\n{END}"


def _fuzzed(records: list[Tried]) -> str:
    rows = []
    for each in sorted(records, key=lambda record: record.what):
        read, refused = (f"{each.happened.get(name, 0):,}" for name in ("read", "refused"))
        slowest, grown = f"{each.more['slowest']:.1f}", f"{each.more['grown'] / 2**20:.0f}"
        cells = [each.what.split()[1], f"{each.tried:,}", read, refused, each.wrong, slowest, grown]
        rows.append([*cells, *_said(each)])
    names = [
        "files",
        "cases",
        "read",
        "refused in one line",
        "anything else",
        "slowest (CPU s)",
        "memory (MiB)",
    ]
    return _table([*names, *_SAID], rows)


def _crashed(records: list[Tried]) -> str:
    rows = []
    for each in sorted(records, key=lambda record: (record.what.split()[1], record.what)):
        fault, name, *locks = each.what.split()
        how, tried = HOW[fault] + "".join(map(LOCKS.__getitem__, locks)), f"{each.tried} of {each.more['changes']}"
        rows.append([f"`{name}`", how, tried, each.happened.get("ends alike", 0), each.wrong, *_said(each)])
    return _table(["command", "at a change", "changes", "ends alike", "anything else", *_SAID], rows)


def _faulted(records: list[Tried]) -> str:
    rows = []
    for name, fault in FAULTS.items():
        for each in (each for each in records if each.what == f"fault {name}"):
            happened = f"{each.happened['as promised']} of {each.tried}"
            rows.append([fault.what, fault.happens, happened, *_said(each)])
    return _table(["what was done", "what has to happen", "happened", *_SAID], rows)


_SAID = ("commit", "again: `python -m tests.`")


def _said(record: Tried) -> tuple[str, str]:
    """At which commit something was tried, and what tries it again, without the beginning that all have."""
    return record.commit, f"`{record.command.removeprefix('python -m tests.')}`"


def _table(names: list[str], rows: list[list[object]]) -> str:
    return tabulate([[str(cell) for cell in row] for row in rows], names, tablefmt="pipe", disable_numparse=True)


_TABLES = {"fuzz": _fuzzed, "kill torn full": _crashed, "fault": _faulted}
_TITLES = {
    "fuzz": "Broken and hostile files",
    "kill torn full": "Every change of a file as a moment to die at",
    "fault": "Faults while a run goes on",
}


def try_again(records: Sequence[Tried], folder: Path) -> None:
    """Run the commands of records anew, which write theirs into a folder. What goes wrong is in these."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in records:
        program, *arguments = shlex.split(each.command)
        assert program == "python", each.command
        record = folder / f"{each.what.replace(' ', '-')}.json" if "tests.crash" in each.command else folder
        print(each.command, flush=True)
        subprocess.run([sys.executable, *arguments, "--record", str(record)], cwd=ROOT, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--again", metavar="WORD")
    options, records = parser.parse_args(), read_records()
    if options.again is not None:
        try_again([each for each in records.values() if options.again in each.command], options.folder)
    for path in sorted(options.folder.glob("*.json")):
        tried = read_tried(path)
        assert tried is not None
        records[tried.what] = tried
    write_json(RECORDS, {name: asdict(record) for name, record in sorted(records.items())})
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
