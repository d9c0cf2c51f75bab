"""What NaVILA's evaluation writes: `<split>_<chunks>-<chunk>.json` per process, episode id -> measures."""

from __future__ import annotations

from agents.common.results import HABITAT
from vlnbench.importing.formats import ResultFormat
from vlnbench.importing.layouts import by_episode

FORMAT = ResultFormat(
    name="navila",
    source="NaVILA's navila_trainer.py (val_unseen_8-0.json)",
    benchmark="r2r-ce",
    files=r"(?P<split>\w+)_(?P<shards>\d{1,4})-(?P<shard>\d{1,4})\.json",
    layout=by_episode,
    scores=HABITAT,
)
