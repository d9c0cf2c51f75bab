"""Imported episodes as a run folder, which says that they were imported, of which files, and what is not known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from vlnbench.data.datasets import expected_count
from vlnbench.data.episodes import EpisodeSet
from vlnbench.data.protocol import Benchmark
from vlnbench.evaluation.choice.choice import Choice
from vlnbench.evaluation.identity import IMPORTED_AS, MARK, UNKNOWN, Identity
from vlnbench.evaluation.records import (
    FORMAT,
    KIND,
    ROWS,
    SUMMARY,
    TRAJECTORIES,
    Row,
    check_same_run,
    encode_trajectory,
)
from vlnbench.evaluation.summary import Summary, summarize
from vlnbench.importing.scores import Imported
from vlnbench.interfaces import Trajectory
from vlnbench.util.durable.files import encode_line, write_bytes, write_json
from vlnbench.util.durable.folder import open_folder
from vlnbench.util.durable.json_stream import sha256
from vlnbench.util.machine import git_revision
from vlnbench.version import __version__


@dataclass(frozen=True, kw_only=True)
class Import:
    """What is going to be a run folder.

    kind: name of the format. stated: whether somebody said that `benchmark` is the protocol; else it only says
    whose episodes these are. at_hand: the split, if it is there and the episodes were found in it.
    """

    kind: str
    name: str
    benchmark: Benchmark
    stated: bool
    split: str
    at_hand: EpisodeSet | None
    files: Sequence[Path]
    episodes: Sequence[Imported]
    remarks: Sequence[str]
    trajectories: Mapping[str, Trajectory] = field(default_factory=dict)

    @property
    def identity(self) -> Identity:
        """What tells these results from others; what files of results do not tell is `UNKNOWN`."""
        ids, whole = self._ids, self._split_size
        chosen = "" if self.choice is None else self.choice.label
        return Identity(
            benchmark=self.benchmark.name,
            fingerprint=self.benchmark.fingerprint if self.stated else UNKNOWN,
            split=self.split,
            dataset_sha256=self.at_hand.sha256 if self.at_hand else UNKNOWN,
            dataset_version=UNKNOWN,
            partial=bool(self.at_hand and self.at_hand.partial),
            episodes=len(ids),
            split_size=max(whole or 0, len(ids)),
            episodes_sha256=hashlib.sha256(json.dumps(ids).encode()).hexdigest() if self.at_hand else UNKNOWN,
            agent=self.name + MARK,
            agent_code=None,
            agent_identity={IMPORTED_AS: self.kind, "files_sha256": sha256(*self.files)},
            simulator=UNKNOWN,
            seed=0,
            repeats=1,
            choice=chosen or ("" if whole else "size of the split not known"),
        )

    @property
    def choice(self) -> Choice | None:
        """Which episodes of the split these are, where they are not all."""
        ids = self._ids
        return None if self.at_hand is None or len(ids) == self._split_size else Choice(episode_ids=tuple(ids))

    @property
    def _split_size(self) -> int | None:
        if self.at_hand is not None:
            return len(self.at_hand.episodes)
        return expected_count(self.benchmark, self.split, UNKNOWN)

    @property
    def _ids(self) -> list[str]:
        """In the order of the split, as plans have them."""
        found = [one.episode_id for one in self.episodes]
        if self.at_hand is None:
            return sorted(found)
        known = set(found)
        return [episode.episode_id for episode in self.at_hand.episodes if episode.episode_id in known]

    def rows(self) -> list[Row]:
        """A row for every episode; scenes and trajectories are the split's where it is at hand."""
        episodes = {episode.episode_id: episode for episode in self.at_hand.episodes} if self.at_hand else {}
        identity = self.identity
        return [
            Row(
                benchmark=identity.benchmark,
                fingerprint=identity.fingerprint,
                split=self.split,
                episode_id=one.episode_id,
                repeat=0,
                scene_id=episode.scene_id if (episode := episodes.get(one.episode_id)) else one.scene or UNKNOWN,
                trajectory_id=episode.trajectory_id if episode else UNKNOWN,
                seed=0,
                status="ok",
                scores=one.scores,
            )
            for one in self.episodes
        ]

    def manifest(self) -> dict[str, Any]:
        """What the run folder says of itself."""
        return {
            "format": FORMAT,
            "identity": asdict(self.identity),
            "agent_privileged": False,
            "imported": {
                "format": self.kind,
                "files": [path.name for path in self.files],
                "protocol": "stated" if self.stated else UNKNOWN,
                "remarks": list(self.remarks),
            },
            "protocol": asdict(self.benchmark),
            **({"choice": self.choice.to_json()} if self.choice else {}),
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "vlnbench": __version__,
            "git": git_revision(),
        }


def default_folder(what: Import) -> Path:
    """`runs/<benchmark>/<split>/<name>-<identity>`, as of an evaluation."""
    name = what.name.replace("/", "_").replace(" ", "_")
    return Path("runs", what.benchmark.name, what.split, f"{name}-{what.identity.digest()}")


def write(what: Import, folder: Path) -> Summary:
    """Write a run folder, or the same again. Raises UsageError for a folder that holds another run."""
    rows, manifest = what.rows(), what.manifest()
    summary = summarize(rows, [row.key for row in rows], what.identity)
    with open_folder(folder, KIND, manifest, lambda found: check_same_run(folder, manifest, found)):
        walked = ((row.key, what.trajectories.get(row.episode_id)) for row in rows)
        lines = [encode_line({"key": key, **encode_trajectory(path)}) for key, path in walked if path is not None]
        write_bytes(folder / TRAJECTORIES, b"".join(lines))
        write_bytes(folder / ROWS, b"".join(encode_line(asdict(row)) for row in rows))
        write_json(folder / SUMMARY, asdict(summary))
    return summary
