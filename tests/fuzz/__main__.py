"""Reads cases of a kind one after another: `python -m tests.fuzz KIND --cases 10000 --seed 0 --record FOLDER`.

Case number n is made from the seed `--seed` + n, so that it can be made again. What should not be is printed with
its seed, and the next case is tried.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from random import Random

from tests.faults.tried import Tried, commit, write_tried
from tests.fuzz.judge import FINE, KINDS, empty_folder, find, judge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="write what came of the cases into this folder")
    options = parser.parse_args()
    kind, happened, slowest, grown = find(options.kind), Counter[str](), 0.0, 0
    began = commit()
    for number in range(1, options.cases + 1):
        seed = options.seed + number - 1
        with empty_folder() as folder:
            kind.write(folder, Random(seed))
            verdict = judge(kind, folder)
        happened[verdict.name] += 1
        slowest, grown = max(slowest, verdict.seconds), max(grown, verdict.grown)
        if verdict.name not in FINE:
            print(f"seed {seed}: {verdict.name}: {verdict.detail}", flush=True)
        if options.record and (number % 100 == 0 or number == options.cases):
            wrong = sum(count for name, count in happened.items() if name not in FINE)
            measured = {"slowest": slowest, "grown": grown, "seeds": [options.seed, seed]}
            command = f"python -m tests.fuzz {options.kind} --cases {number} --seed {options.seed}"
            tried = Tried(f"fuzz {options.kind}", command, began, number, dict(happened), wrong, measured)
            write_tried(options.record / f"fuzz-{options.kind}.json", tried)
    print(dict(happened))


if __name__ == "__main__":
    main()
