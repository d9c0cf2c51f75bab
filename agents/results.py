"""What the evaluations of other programs write, and submissions to challenges, for `vlnbench import`."""

from __future__ import annotations

from dataclasses import replace

from vlnbench.importing.formats import LENGTH, ResultFormat
from vlnbench.importing.layouts import by_episode, lines, one_each
from vlnbench.importing.submissions import EPISODE, PATH, paths

_HABITAT = {
    "success": "success",
    "spl": "spl",
    "oracle_success": "oracle_success",
    "distance_to_goal": "distance_to_goal",
    "ndtw": "ndtw",
    "path_length": "path_length",
    "steps_taken": "steps",
}
"""Measures of VLN-CE, as its evaluator and those made from it write them; collisions are a share, no count."""

STREAMVLN = ResultFormat(
    name="streamvln",
    source="StreamVLN's streamvln_eval.py (result.json)",
    benchmark="r2r-ce",
    files=r"result.*\.jsonl?",
    layout=lines,
    scores={
        "success": "success",
        "spl": "spl",
        "os": "oracle_success",
        "ne": "distance_to_goal",
        "ndtw": "ndtw",
        "steps": "steps",
    },
    scene="scene_id",
    totals={
        "sucs_all": "success",
        "spls_all": "spl",
        "oss_all": "oracle_success",
        "ones_all": "distance_to_goal",
        "nes_all": "distance_to_goal",
        "ndtws_all": "ndtw",
        "length": LENGTH,
    },
)
"""`result.json`, a JSON line per episode of all ranks, and one of means. Only newer versions write nDTW."""

JANUSVLN = replace(STREAMVLN, name="janusvln", source="JanusVLN's evaluation.py (result.json)")

INTERNNAV = replace(
    STREAMVLN,
    name="internnav",
    source="InternNav's habitat_vln_evaluator.py (progress.json, means in result.json)",
    files=r"progress.*\.jsonl?",
    totals_files=r"result\.json",
)

NAVILA = ResultFormat(
    name="navila",
    source="NaVILA's navila_trainer.py (val_unseen_8-0.json)",
    benchmark="r2r-ce",
    files=r"(?P<split>\w+)_(?P<shards>\d{1,4})-(?P<shard>\d{1,4})\.json",
    layout=by_episode,
    scores=_HABITAT,
)
"""`<split>_<chunks>-<chunk>.json` per process, episode id -> measures."""

UNINAVID = ResultFormat(
    name="uninavid",
    source="NaVid-VLN-CE (log/stats_<episode>.json)",
    benchmark="r2r-ce",
    files=r"stats_(?!ckpt_|ep_ckpt_)[\w.-]+\.json",
    layout=one_each,
    scores=_HABITAT,
    episode="id",
)
"""`log/stats_<episode>.json`, one file for every episode."""

_CHECKPOINT = r"ckpt_(?:(?P<checkpoint>[^_]+)_)?(?P<split>(?:train|val|test|joint|envdrop)\w*?)"

VLNCE = ResultFormat(
    name="vlnce",
    source="VLN-CE's trainers (stats_ep_ckpt_0_val_unseen_r0_w1.json, means in stats_ckpt_0_val_unseen.json)",
    benchmark="r2r-ce",
    files=rf"stats_ep_{_CHECKPOINT}_r(?P<shard>\d{{1,4}})_w(?P<shards>\d{{1,4}})\.json",
    layout=by_episode,
    scores=_HABITAT,
    totals=_HABITAT,
    totals_files=rf"stats_{_CHECKPOINT}\.json",
)
"""Means per checkpoint, episodes per rank; also of what was made from VLN-CE (CWP, ETPNav)."""

EVALAI = ResultFormat(
    name="evalai",
    source="submissions to R2R-CE (EvalAI) or RxR-Habitat",
    benchmark="r2r-ce",
    files=r".*(?:predictions|submission).*\.jsonl?",
    layout=paths,
    episode=EPISODE,
    path=PATH,
)
