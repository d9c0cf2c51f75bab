"""Editions of the houses benchmark: old ones stay as they are, byte by byte. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SCENES_DIR = Path("scene_datasets")
SPEAKER = "speaker"
"""The voice of sets to train on."""
_IDS_APART = 10_000_000


@dataclass(frozen=True)
class Edition:
    """One edition: what its files are called, and which splits it has.

    name: of its generator, folders and manifest. version: changes whenever the same options give other bytes.
    groups: splits that have the same houses, by the part of their names. additions: sets to train on that are
    made on demand; noisy: the one whose speaker errs; dropped: the one in houses that are refurnished. far:
    splits of which every goal is far from the entrance of its room. looks: further looks, whose splits and added
    sets are called `SPLIT_LOOK` and hold the same episodes. varied: whether materials, furniture and light of the
    houses' own look are drawn for every house; otherwise all houses share them. voice: who tells R2R-like
    instructions. near_kept: share that is kept of walks whose goal is not far, which most are.
    """

    name: str
    version: str
    groups: Mapping[str, tuple[str, ...]] = field(hash=False)
    additions: tuple[str, ...]
    far: tuple[str, ...] = ()
    looks: tuple[str, ...] = ()
    varied: bool = False
    voice: str = "r2r"
    near_kept: float = 1.0
    noisy: str = "envdrop"
    dropped: str = ""

    @property
    def drawn(self) -> tuple[str, ...]:
        """The splits whose episodes are drawn."""
        return tuple(split for splits in self.groups.values() for split in splits)

    @property
    def added(self) -> tuple[str, ...]:
        """All sets to train on that are made on demand."""
        return (*self.additions, *(f"{split}_{look}" for look in self.looks for split in self.additions))

    @property
    def splits(self) -> tuple[str, ...]:
        """All splits that are made when they are asked for."""
        return (*self.drawn, *(f"{split}_{look}" for look in self.looks for split in self.drawn))

    def drawn_as(self, split: str) -> tuple[str, str]:
        """The split whose episodes a split holds, and its look: "" is the houses' own."""
        base, _, look = split.rpartition("_")
        return (base, look) if look in self.looks else (split, "")

    def group_of(self, split: str) -> str:
        """The group of a split that is drawn."""
        return next(group for group, splits in self.groups.items() if split in splits)

    @property
    def voices(self) -> tuple[str, str]:
        """Whose words R2R-like episodes and sets to train on may hold."""
        return self.voice, SPEAKER

    @property
    def r2r_dir(self) -> Path:
        """Folder of R2R-like episodes below a data root."""
        return Path("datasets", f"{self.name}_r2r")

    @property
    def rxr_dir(self) -> Path:
        """Folder of RxR-like episodes below a data root."""
        return Path("datasets", f"{self.name}_rxr")

    @property
    def manifest(self) -> Path:
        """What is read of what lies below a data root."""
        return self.r2r_dir / f"{self.name}.json"

    @property
    def rxr_manifest(self) -> Path:
        """A copy beside the RxR-like episodes."""
        return self.rxr_dir / f"{self.name}.json"

    def addition_manifest(self, split: str) -> Path:
        """Of a set to train on."""
        return self.r2r_dir / split / f"{split}_{self.name}.json"

    def first_id(self, split: str) -> int:
        """First trajectory id and first instruction id of a split; splits are made in any order."""
        return 1 + _IDS_APART * (*self.drawn, *self.additions).index(split)


HOUSES = Edition(
    "houses",
    "houses-3",
    {"train": ("train", "val_seen"), "unseen": ("val_unseen",)},
    additions=("envdrop", "speaker", "recolored"),
    looks=("materials", "evening", "textures"),
    dropped="recolored",
)
HOUSES_2 = Edition(
    "houses2",
    "houses2-1",
    {"train": ("train", "val_seen", "val_seen_far"), "unseen": ("val_unseen", "val_unseen_far")},
    additions=("envdrop", "noise", "speaker"),
    far=("val_seen_far", "val_unseen_far"),
    looks=("evening", "textures"),
    varied=True,
    voice="r2r-wide",
    near_kept=0.12,
    noisy="noise",
    dropped="envdrop",
)
