"""Which episodes succeeded, as bits in matrix.json, so that anybody can look at a part of them again.

`matrix.json` lists the episodes of its evaluations once (`episodes`, by the hash of their ids that is in every
identity); a result has one bit for each of them and each repeat, in the order of that list.
`benchmarks/statistics/rederive.py` reads them, and computes every effect anew with code of its own.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from vlnbench.evaluation.records import Row
from vlnbench.evaluation.summary import METRICS, values


def listed(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The episodes of a finished evaluation, sorted by id, each with its scene."""
    found = sorted({row.episode_id: row.scene_id for row in rows}.items())
    return {"ids": [name for name, _ in found], "scenes": [scene for _, scene in found]}


def packed(rows: Sequence[Row]) -> str | None:
    """A bit for every episode and repeat, sorted by both, the first one highest, in base64; None without goals."""
    success = next(metric for metric in METRICS if metric.field == "success")
    ordered = sorted(values(success, rows), key=lambda found: (found[0].episode_id, found[0].repeat))
    if not ordered or len(ordered) != len(rows) or any(row.status == "unscored" for row in rows):
        return None
    bits = "".join("1" if value else "0" for _, value in ordered)
    size = (len(bits) + 7) // 8
    return base64.b64encode(int(bits.ljust(8 * size, "0"), 2).to_bytes(size, "big")).decode()
