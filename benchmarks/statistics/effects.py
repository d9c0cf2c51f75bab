"""How often intervals over episodes and trainings hold the truth: the tables of docs/reference/metrics.md.

    python -m benchmarks.statistics.effects [--matrices 4000]

The simulated matrices are those of tests/matrix/statistics/test_crossed.py.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from tests.matrix.statistics.test_crossed import Design, borrowed, coverage

SPREADS = ((0.0, 0.0), (0.05, 0.0), (0.1, 0.1), (0.2, 0.1), (0.2, 0.4))
"""Standard deviations of trainings and of label x scene, beside 1 of an episode."""
SHAPES = (
    Design(2, 2, 20, 5),
    Design(2, 2, 60, 15),
    Design(4, 2, 20, 15),
    Design(1, 3, 20, 15),
    Design(1, 3, 60, 5),
    Design(7, 3, 20, 15),
    Design(7, 3, 60, 15, only=True),
    Design(1, 5, 20, 15),
    Design(1, 5, 60, 15),
    Design(1, 8, 20, 5),
    Design(1, 8, 60, 15),
)
FEW = Design(4, 2, 60, 15)
"""Whose first setting under either label is compared, by one training each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrices", type=int, default=4000)
    matrices = parser.parse_args().matrices
    print(f"| contexts x seeds | scenes x episodes | {' | '.join(f'{a:g}, {b:g}' for a, b in SPREADS)} |")
    print(f"|---|---|{'---|' * len(SPREADS)}")
    for shape in SHAPES:
        found = [coverage(replace(shape, training=a, interaction=b), matrices) for a, b in SPREADS]
        one = ", in one of them" if shape.only else ""
        cells = " | ".join(f"{100 * share:.1f}" for share, _ in found)
        print(
            f"| {shape.contexts} x {shape.seeds}{one} | {shape.scenes} x {shape.episodes} | {cells} |", flush=True
        )
    print(f"\n| settings of two seeds | {' | '.join(f'{a:g}, {b:g}' for a, b in SPREADS)} |")
    print(f"|---|{'---|' * len(SPREADS)}")
    for degrees in (1, 2, 3):
        shares = [borrowed(replace(FEW, training=a, interaction=b), degrees, matrices) for a, b in SPREADS]
        print(f"| {degrees} | {' | '.join(f'{100 * share:.1f}' for share in shares)} |", flush=True)


if __name__ == "__main__":
    main()
