"""One evaluation protocol: all that a benchmark fixes of a task and that can change a score."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from vlnbench.interfaces import Embodiment

COSMETIC = ("summary", "dataset_folders", "splits", "generator")
"""Fields of a benchmark that change no score."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One evaluation protocol.

    reader: format of the episode files: "r2r" (R2R-CE of VLN-CE), "rxr" (RxR_VLNCE_v0), or the import string of a
    function that makes entries in R2R-CE's format of a file's path. dataset_folders: names under
    `<data root>/datasets` in which they may lie, best first. splits: name -> number of published episodes, None
    where it is not known. roles, languages: which RxR episodes belong (empty: all). max_steps: actions per
    episode, STOP included. success_distance_m: the agent succeeds if it calls STOP strictly closer than this to
    the goal (geodesic). generator: what makes the data (`vlnbench.data.generator`): a
    name of `vlnbench.defaults.GENERATORS` or an import string; None: they are downloaded.
    """

    name: str
    version: int
    summary: str
    reader: str
    dataset_folders: tuple[str, ...]
    splits: Mapping[str, int | None]
    body: Embodiment
    roles: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    max_steps: int = 500
    success_distance_m: float = 3.0
    generator: str | None = None

    @property
    def fingerprint(self) -> str:
        """Hash of every field that can change a score (sha256, 12 hex digits)."""
        protocol = {name: value for name, value in asdict(self).items() if name not in COSMETIC}
        text = json.dumps(protocol, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]
