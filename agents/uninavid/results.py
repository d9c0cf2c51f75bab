"""What Uni-NaVid's evaluation (NaVid-VLN-CE) writes: `log/stats_<episode>.json`, one file for every episode."""

from __future__ import annotations

from agents.common.results import HABITAT
from vlnbench.importing.formats import ResultFormat
from vlnbench.importing.layouts import one_each

FORMAT = ResultFormat(
    name="uninavid",
    source="NaVid-VLN-CE (log/stats_<episode>.json)",
    benchmark="r2r-ce",
    files=r"stats_(?!ckpt_|ep_ckpt_)[\w.-]+\.json",
    layout=one_each,
    scores=HABITAT,
    episode="id",
)
