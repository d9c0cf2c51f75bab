"""How long paths and instructions are, beside the figures of R2R-CE."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from envs.houses.files.episode_files import Told

R2R_CE = {
    "val_seen": {
        "geodesic distance (m)": 9.6,
        "path length (m)": 9.8,
        "actions": 59.3,
        "forward": 38.8,
        "turn actions": 19.6,
        "turns of 45 degrees or more": 1.8,
        "words": 27.0,
        "clauses": 4.7,
        "episodes per trajectory": 3.0,
    },
    "val_unseen": {
        "geodesic distance (m)": 8.9,
        "path length (m)": 9.2,
        "actions": 57.3,
        "forward": 36.0,
        "turn actions": 20.3,
        "turns of 45 degrees or more": 2.1,
        "words": 26.6,
        "clauses": 4.6,
        "episodes per trajectory": 3.0,
    },
}
"""The same means over the public files of R2R-CE v1-3."""

_CLAUSE_ENDS = re.compile(r"[.!?,;]|\band\b|\bthen\b")
_TURN_DEG = 15
_REAL_TURN_DEG = 45


class Totals:
    """Sums over the R2R-like episodes of trajectories that are added one by one."""

    def __init__(self) -> None:
        self.episodes = 0
        self._trajectories = 0
        self._sums = dict.fromkeys(R2R_CE["val_unseen"], 0.0)

    def add(self, row: Told) -> None:
        """Count a trajectory once for each of its texts."""
        walk, count = row.trajectory.walk, len(row.texts)
        self.episodes += count
        self._trajectories += 1
        turns = walk.actions.count(2) + walk.actions.count(3)
        for name, value in {
            "geodesic distance (m)": row.trajectory.geodesic,
            "path length (m)": walk.length,
            "actions": len(walk.actions),
            "forward": walk.actions.count(1),
            "turn actions": turns,
            "turns of 45 degrees or more": real_turns(walk.actions),
        }.items():
            self._sums[name] += value * count
        self._sums["words"] += sum(len(text.split()) for text in row.texts)
        self._sums["clauses"] += sum(map(clause_count, row.texts))

    def means(self) -> dict[str, float]:
        """Means per episode, rounded to a tenth."""
        means = {name: round(total / self.episodes, 1) for name, total in self._sums.items()}
        return {**means, "episodes per trajectory": round(self.episodes / self._trajectories, 1)}


def summarize(rows: Iterable[Told]) -> dict[str, float]:
    """Means over the R2R-like episodes of some trajectories."""
    totals = Totals()
    for row in rows:
        totals.add(row)
    return totals.means()


def real_turns(actions: Sequence[int]) -> int:
    """Runs of turn actions that change the heading by 45 degrees or more."""
    turns, angle = 0, 0
    for action in (*actions, 1):
        if action in (2, 3):
            angle += _TURN_DEG if action == 2 else -_TURN_DEG
        else:
            turns += abs(angle) >= _REAL_TURN_DEG
            angle = 0
    return turns


def clause_count(text: str) -> int:
    """Parts of an English text between punctuation marks, "and" and "then"."""
    return sum(bool(part.strip()) for part in _CLAUSE_ENDS.split(text))
