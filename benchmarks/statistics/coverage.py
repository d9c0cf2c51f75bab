"""How often nominal 95 % intervals hold the truth: the table of docs/reference/metrics.md.

    python -m benchmarks.statistics.coverage [--trials 8000]

The simulated runs are those of tests/evaluation/test_stats.py; correlation within scenes along the columns.
"""

from __future__ import annotations

import argparse

from tests.evaluation.test_stats import DESIGNS, STRUCTURES, coverage, rates

EFFECTS = (0.0, 0.02, 0.1, 0.3)
SIZES = {
    "R2R-CE val_unseen: 11 scenes": STRUCTURES["R2R-CE val_unseen, 11 scenes"],
    "R2R-CE val_seen: 53 scenes": STRUCTURES["R2R-CE val_seen, 53 scenes"],
    "10 scenes of 30 episodes": [30] * 10,
    "4 scenes of 39 episodes": [39] * 4,
    "4 scenes of 18, 102, 177 and 300": [18, 102, 177, 300],
}
RUNS = {"SR 2 %": (rates(0.02), "rate", 0.02), **DESIGNS}
SHOWN = ("SR 2 %", "SR 14 %", "SR 50 %", "SR 90 %", "normal", "log-normal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8000)
    trials = parser.parse_args().trials
    print(f"| episodes per scene | values | {' | '.join(f'{effect:g}' for effect in EFFECTS)} |")
    print(f"|---|---|{'---|' * len(EFFECTS)}")
    for name, sizes in SIZES.items():
        for design in SHOWN:
            shares = [coverage(sizes, *RUNS[design], effect, trials) for effect in EFFECTS]
            print(f"| {name} | {design} | {' | '.join(f'{100 * share:.1f}' for share in shares)} |", flush=True)


if __name__ == "__main__":
    main()
