"""Formats of results of no family here: of InternNav's evaluator, and submissions to challenges."""

from __future__ import annotations

from agents.common.results import BY_SCENE, BY_SCENE_TOTALS
from vlnbench.importing.formats import ResultFormat
from vlnbench.importing.layouts import lines
from vlnbench.importing.submissions import EPISODE, PATH, paths

INTERNNAV = ResultFormat(
    name="internnav",
    source="InternNav's habitat_vln_evaluator.py (progress.json, means in result.json)",
    benchmark="r2r-ce",
    files=r"progress.*\.jsonl?",
    layout=lines,
    scores=BY_SCENE,
    scene="scene_id",
    totals=BY_SCENE_TOTALS,
    totals_files=r"result\.json",
)

EVALAI = ResultFormat(
    name="evalai",
    source="submissions to R2R-CE (EvalAI) or RxR-Habitat",
    benchmark="r2r-ce",
    files=r".*(?:predictions|submission).*\.jsonl?",
    layout=paths,
    episode=EPISODE,
    path=PATH,
)
