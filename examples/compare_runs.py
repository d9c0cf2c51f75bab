"""Two finished runs in pandas: where does the second gain on the first?

    python examples/compare_runs.py results/runs/houses-r2r-val-unseen-blind \\
        results/runs/houses-r2r-val-unseen-streamvln-tiny

Rows are JSON Lines, so pandas is all it takes. For intervals of the differences: `vlnbench compare RUN RUN`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd


def load(run: Path) -> pd.DataFrame:
    """One line per episode of a run folder (a committed run's rows are compressed), scores as columns."""
    path = next(path for path in (run / "episodes.jsonl", run / "episodes.jsonl.gz") if path.is_file())
    rows = pd.read_json(path, lines=True, dtype={"episode_id": str})
    rows = rows.drop_duplicates(["episode_id", "repeat"], keep="last")  # an episode's last row counts
    return rows.join(pd.json_normalize(rows["scores"].tolist()).set_index(rows.index))


def compare(run_a: Path, run_b: Path) -> pd.DataFrame:
    """Success and SPL of both runs on the same episodes, by length of the shortest path, in percent."""
    pairs = load(run_a).merge(load(run_b), on=["episode_id", "repeat"], suffixes=("_a", "_b"), validate="1:1")
    length = pd.cut(pairs["geodesic_start_a"], [0, 5, 7, 9, 100], labels=["to 5 m", "5-7 m", "7-9 m", "over 9 m"])
    scores = pairs[["success_a", "success_b", "spl_a", "spl_b"]].fillna(0.0).astype(float) * 100  # errors fail
    table = scores.groupby(length, observed=True).mean()
    table.insert(0, "episodes", pairs.groupby(length, observed=True).size())
    table["gain in success"] = table["success_b"] - table["success_a"]
    return table.round(1)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    print(compare(Path(sys.argv[1]), Path(sys.argv[2])).to_string())
