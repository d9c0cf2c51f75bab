"""Fuzz one kind of file: `python -m tests.fuzz --what glb --cases 10000`.

Prints what went wrong, case by case, then one line of sums; exit code 1 if anything did. A case is written again
by `--only NUMBER --keep FOLDER`.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import cast

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
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", choices=KINDS, required=True)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this case alone")
    parser.add_argument("--keep", type=Path, help="copy the files of whatever goes wrong, or of --only, here")
    parser.add_argument("--corpus", action="store_true", help="run the known cases first")
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


def random_cases(kind: harness.Kind, options: argparse.Namespace) -> int:
    """Run random cases. Number of those that are neither read nor refused."""
    verdicts: Counter[str] = Counter()
    seconds, slowest, grown = 0.0, 0.0, 0
    numbers = range(options.first, options.first + options.cases) if options.only is None else [options.only]
    for number, verdict in harness.judge_cases(kind, options.what, numbers, options.seed):
        verdicts[verdict.name] += 1
        seconds, slowest = seconds + verdict.seconds, max(slowest, verdict.seconds)
        grown = max(grown, verdict.grown)
        if verdict.name not in harness.FINE or options.only is not None:
            print(f"case {number}: {described(verdict)}", flush=True)
            with harness.case(kind, options.what, number, options.seed) as folder:
                kept(folder, options.keep, f"{options.what}-{options.seed}-{number}")
    sums = ", ".join(f"{name} {n}" for name, n in sorted(verdicts.items()))
    print(
        f"{options.what} seed {options.seed} from {numbers[0]}: {sums}; {1000 * seconds / len(numbers):.1f} ms a"
        f" case, slowest {slowest:.1f} s, largest {grown / 2**20:.0f} MiB"
    )
    return sum(n for name, n in verdicts.items() if name not in harness.FINE)


def described(verdict: harness.Verdict) -> str:
    return f"{verdict.name} ({verdict.seconds:.2f} s, {verdict.grown / 2**20:.0f} MiB) {verdict.detail}"


def kept(folder: Path, keep: Path | None, name: str) -> None:
    if keep is not None:
        shutil.copytree(folder, keep / name, dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
