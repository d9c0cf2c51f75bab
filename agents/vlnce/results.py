"""What VLN-CE's evaluation and those made from it (CWP, ETPNav) write: means per checkpoint, episodes per rank."""

from __future__ import annotations

from agents.common.results import HABITAT
from vlnbench.importing.formats import ResultFormat
from vlnbench.importing.layouts import by_episode

_CHECKPOINT = r"ckpt_(?:(?P<checkpoint>[^_]+)_)?(?P<split>(?:train|val|test|joint|envdrop)\w*?)"

FORMAT = ResultFormat(
    name="vlnce",
    source="VLN-CE's trainers (stats_ep_ckpt_0_val_unseen_r0_w1.json, means in stats_ckpt_0_val_unseen.json)",
    benchmark="r2r-ce",
    files=rf"stats_ep_{_CHECKPOINT}_r(?P<shard>\d{{1,4}})_w(?P<shards>\d{{1,4}})\.json",
    layout=by_episode,
    scores=HABITAT,
    totals=HABITAT,
    totals_files=rf"stats_{_CHECKPOINT}\.json",
)
