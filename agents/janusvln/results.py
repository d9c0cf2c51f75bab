"""What JanusVLN's evaluation writes: `result.json`, a JSON line per episode of all ranks, and one of means."""

from __future__ import annotations

from agents.common.results import BY_SCENE, BY_SCENE_TOTALS
from vlnbench.importing.formats import ResultFormat
from vlnbench.importing.layouts import lines

FORMAT = ResultFormat(
    name="janusvln",
    source="JanusVLN's evaluation.py (result.json)",
    benchmark="r2r-ce",
    files=r"result.*\.jsonl?",
    layout=lines,
    scores=BY_SCENE,
    scene="scene_id",
    totals=BY_SCENE_TOTALS,
)
