"""Fuzz one kind of file: `python -m tests.fuzz --what glb --cases 10000`.

Prints what went wrong, case by case, then one line of sums; exit code 1 if anything did. A case is written again
by `--only NUMBER --keep FOLDER`. With `--record FILE` the sums are kept there from time to time: a run that was
stopped goes on from them when it is given again at the same commit.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from tests.faults.tried import Tried, commit, read_tried, write_tried
from tests.fuzz import harness

KINDS = (
    "benchmarks",
    "checkpoints",
    "episodes",
    "glb",
    "matrices",
    "navmesh",
    "published",
    "run_folders",
    "wire_messages",
)

_STEP = 100
"""Cases after which the sums are recorded."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", choices=KINDS, required=True)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this case alone")
    parser.add_argument("--keep", type=Path, help="copy the files of whatever goes wrong, or of --only, here")
    parser.add_argument("--corpus", action="store_true", help="run the known cases first")
    parser.add_argument("--record", type=Path, help="keep the sums in this file, and go on from them")
    options = parser.parse_args()
    kind = cast("harness.Kind", importlib.import_module(f"tests.fuzz.kinds.{options.what}"))
    kind.prepare()
    wrong = known_cases(kind, options.keep) if options.corpus else 0
    wrong += random_cases(kind, options)
    return 1 if wrong else 0


def known_cases(kind: harness.Kind, keep: Path | None) -> int:
    """Run the corpus: every case has to end as it says. Number of those that do not."""
    wrong = 0
    for name, expected, folder in harness.corpus(kind):
        verdict = harness.judge(kind, folder)
        fine = verdict.name == ("refused" if expected else "read") and expected in verdict.detail
        print(f"corpus {name}: {described(verdict)}", flush=True)
        if not fine:
            wrong += 1
            print(f"WRONG: expected {expected or 'that it is read'}")
            kept(folder, keep, name)
    return wrong


@dataclass
class Sums:
    """What came of the cases so far: verdicts, CPU seconds, those of the slowest, bytes of the largest."""

    verdicts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    slowest: float = 0.0
    grown: int = 0

    def add(self, verdict: harness.Verdict) -> None:
        self.verdicts[verdict.name] += 1
        self.seconds += verdict.seconds
        self.slowest, self.grown = max(self.slowest, verdict.seconds), max(self.grown, verdict.grown)

    def __str__(self) -> str:
        names = ", ".join(f"{name} {n}" for name, n in sorted(self.verdicts.items()))
        each = 1000 * self.seconds / max(1, self.verdicts.total())
        return f"{names}; {each:.1f} ms a case, slowest {self.slowest:.1f} s, largest {self.grown / 2**20:.0f} MiB"

    @property
    def wrong(self) -> int:
        return sum(n for name, n in self.verdicts.items() if name not in harness.FINE)


def random_cases(kind: harness.Kind, options: argparse.Namespace) -> int:
    """Run random cases. Number of those that are neither read nor refused."""
    numbers = range(options.first, options.first + options.cases) if options.only is None else [options.only]
    sums, record = Sums(), options.record if options.only is None else None
    if record is not None:
        sums = recorded(record, options)
    tried = sums.verdicts.total()
    for number, verdict in harness.judge_cases(kind, options.what, numbers[tried:], options.seed):
        sums.add(verdict)
        if verdict.name not in harness.FINE or options.only is not None:
            print(f"case {number}: {described(verdict)}", flush=True)
            with harness.case(kind, options.what, number, options.seed) as folder:
                kept(folder, options.keep, f"{options.what}-{options.seed}-{number}")
        if record is not None and sums.verdicts.total() % _STEP == 0:
            write_record(record, options, sums)
    if record is not None:
        write_record(record, options, sums)
    print(f"{options.what} seed {options.seed} from {numbers[0]}: {sums}")
    return sums.wrong


def recorded(path: Path, options: argparse.Namespace) -> Sums:
    """The sums of a run that was stopped; none if it was of other cases or at another commit."""
    found = read_tried(path)
    fresh = made(options, Sums())
    if found is None or (found.what, found.command, found.commit) != (fresh.what, fresh.command, fresh.commit):
        return Sums()
    return Sums(**{**found.more, "verdicts": Counter(found.happened)})


def write_record(path: Path, options: argparse.Namespace, sums: Sums) -> None:
    write_tried(path, made(options, sums))


def made(options: argparse.Namespace, sums: Sums) -> Tried:
    first = f" --first {options.first}" if options.first else ""
    return Tried(
        what=f"fuzz {options.what}",
        command=f"python -m tests.fuzz --what {options.what} --cases {options.cases} --seed {options.seed}{first}",
        commit=commit(),
        tried=sums.verdicts.total(),
        happened=dict(sums.verdicts),
        wrong=sums.wrong,
        more={name: value for name, value in asdict(sums).items() if name != "verdicts"},
    )


def described(verdict: harness.Verdict) -> str:
    return f"{verdict.name} ({verdict.seconds:.2f} s, {verdict.grown / 2**20:.0f} MiB) {verdict.detail}"


def kept(folder: Path, keep: Path | None, name: str) -> None:
    if keep is not None:
        shutil.copytree(folder, keep / name, dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
