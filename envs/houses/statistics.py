"""How long paths and instructions are, beside the figures of R2R-CE."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .episode_files import Told

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


def summarise(rows: Sequence[Told]) -> dict[str, float]:
    """Means over the R2R-like episodes of some trajectories, rounded to a tenth."""
    weights = [len(row.texts) for row in rows]
    texts = [text for row in rows for text in row.texts]
    walks = [row.trajectory.walk for row in rows]

    def mean(values: Iterable[float]) -> float:
        total = sum(value * weight for value, weight in zip(values, weights, strict=True))
        return round(total / len(texts), 1)

    return {
        "geodesic distance (m)": mean(row.trajectory.geodesic for row in rows),
        "path length (m)": mean(walk.length for walk in walks),
        "actions": mean(len(walk.actions) for walk in walks),
        "forward": mean(walk.actions.count(1) for walk in walks),
        "turn actions": mean(walk.actions.count(2) + walk.actions.count(3) for walk in walks),
        "turns of 45 degrees or more": mean(real_turns(walk.actions) for walk in walks),
        "words": round(sum(len(text.split()) for text in texts) / len(texts), 1),
        "clauses": round(sum(map(clause_count, texts)) / len(texts), 1),
        "episodes per trajectory": round(len(texts) / len(rows), 1),
    }


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
