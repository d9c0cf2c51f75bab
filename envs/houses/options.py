"""What is generated of the houses benchmark: the options of the command line. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from vlnbench.errors import UsageError

StartHeading = Literal["random", "along", "away"]


@dataclass(frozen=True)
class HousesConfig:
    """Size, difficulty and seed of a generated benchmark. The same values give the same bytes.

    Raises UsageError for values outside the ranges in `RANGES`.
    """

    seed: int = 0
    """Seed of the whole benchmark."""
    train_houses: int = 150
    """Houses for train, val_seen and envdrop."""
    val_unseen_houses: int = 60
    """Houses for val_unseen only."""
    train_episodes: int = 9000
    """Episodes of train; one to three share a trajectory."""
    val_seen_episodes: int = 900
    """Episodes of val_seen."""
    val_unseen_episodes: int = 900
    """Episodes of val_unseen."""
    rooms_min: int = 7
    """Fewest rooms of a house, hallways included."""
    rooms_max: int = 10
    """Most rooms of a house."""
    storeys_share: float = 0.0
    """Share of houses with two storeys joined by a ramp; they have at least six rooms."""
    landmark_repetition: float = 0.2
    """Chance that a landmark repeats the color and noun of one in another room."""
    distractors: int = 0
    """Further objects per room that share the noun, but not the color, of a landmark there."""
    clause_dropout: float = 0.0
    """Chance that an instruction leaves out a clause that is not needed to be unambiguous."""
    start_heading: StartHeading = "random"
    """Where the agent looks at first: anywhere, along the path, or away from it."""

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            whole = isinstance(low, int)
            number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not number or not low <= value <= high:
                kind = "whole number" if whole else "number"
                raise UsageError(f"houses: {name} = {value!r}: give a {kind} from {low} to {high}")
        if self.rooms_min > self.rooms_max:
            raise UsageError(f"houses: rooms_min = {self.rooms_min}: give at most rooms_max = {self.rooms_max}")
        if self.start_heading not in ("random", "along", "away"):
            raise UsageError(f"houses: start_heading = {self.start_heading!r}: give random, along or away")


RANGES: dict[str, tuple[int, int] | tuple[float, float]] = {
    "seed": (0, 2**31 - 1),
    "train_houses": (1, 1000),
    "val_unseen_houses": (1, 1000),
    "train_episodes": (1, 1_000_000),
    "val_seen_episodes": (1, 1_000_000),
    "val_unseen_episodes": (1, 1_000_000),
    "rooms_min": (4, 12),
    "rooms_max": (4, 12),
    "storeys_share": (0.0, 1.0),
    "landmark_repetition": (0.0, 1.0),
    "distractors": (0, 3),
    "clause_dropout": (0.0, 0.9),
}
"""Least and greatest value of every number; whole numbers where the bounds are."""


@dataclass(frozen=True)
class HousesOptions(HousesConfig):
    """Generate houses-r2r and houses-rxr: scenes, navmeshes and episodes, the same bytes for the same options."""

    data_root: Path = Path("data")
    """Folder below which datasets/ and scene_datasets/ are written."""
    envdrop: bool = False
    """Add the augmentation set of a noisy machine speaker, as split envdrop."""
    envdrop_episodes: int | None = None
    """Its episodes; default five times those of train."""

    def check(self) -> None:
        """Raise UsageError where the augmentation set contradicts itself."""
        if self.envdrop_episodes is not None and not (self.envdrop and self.envdrop_episodes >= 1):
            raise UsageError(f"--envdrop-episodes {self.envdrop_episodes}: expected 1 or more, with --envdrop")

    @property
    def config(self) -> HousesConfig:
        """What decides the bytes that are generated."""
        return HousesConfig(**{field.name: getattr(self, field.name) for field in fields(HousesConfig)})
