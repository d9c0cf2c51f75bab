"""What is generated of the houses benchmark: the options of the command line. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal

from envs.houses.edition import HOUSES, HOUSES_2, Edition
from vlnbench.errors import UsageError, unknown

StartHeading = Literal["random", "along", "away"]


@dataclass(frozen=True)
class HousesConfig:
    """Size, difficulty and seed of a generated benchmark. The same values give the same bytes.

    Raises UsageError for values outside the ranges in `RANGES`.
    """

    edition: ClassVar[Edition] = HOUSES
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
        for name in (each.name for each in fields(self) if each.name in RANGES):
            (low, high), value = RANGES[name], getattr(self, name)
            whole = isinstance(low, int)
            number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not number or not low <= value <= high:
                kind = "whole number" if whole else "number"
                raise UsageError(f"{self.edition.name}: {name} = {value!r}: give a {kind} from {low} to {high}")
        if self.rooms_min > self.rooms_max:
            raise UsageError(
                f"{self.edition.name}: rooms_min = {self.rooms_min}: give at most rooms_max = {self.rooms_max}"
            )
        if self.start_heading not in ("random", "along", "away"):
            raise UsageError(
                f"{self.edition.name}: start_heading = {self.start_heading!r}: give random, along or away"
            )


@dataclass(frozen=True)
class Houses2Config(HousesConfig):
    """The same of the second edition."""

    edition: ClassVar[Edition] = HOUSES_2
    val_seen_far_episodes: int = 900
    """Episodes of val_seen_far: goals more than 3 m behind the entrance of their room."""
    val_unseen_far_episodes: int = 900
    """Episodes of val_unseen_far."""


CONFIGS: dict[str, type[HousesConfig]] = {kind.edition.name: kind for kind in (HousesConfig, Houses2Config)}
"""Configurations by the names of their editions."""

RANGES: dict[str, tuple[int, int] | tuple[float, float]] = {
    "seed": (0, 2**31 - 1),
    "train_houses": (1, 1000),
    "val_unseen_houses": (1, 1000),
    "train_episodes": (1, 1_000_000),
    "val_seen_episodes": (1, 1_000_000),
    "val_unseen_episodes": (1, 1_000_000),
    "val_seen_far_episodes": (1, 1_000_000),
    "val_unseen_far_episodes": (1, 1_000_000),
    "rooms_min": (4, 12),
    "rooms_max": (4, 12),
    "storeys_share": (0.0, 1.0),
    "landmark_repetition": (0.0, 1.0),
    "distractors": (0, 3),
    "clause_dropout": (0.0, 0.9),
}
"""Least and greatest value of every number; whole numbers where the bounds are."""


class _Asked:
    """What the options of every edition do alike."""

    edition: ClassVar[Edition]
    look: tuple[str, ...]
    COUNT: ClassVar[str]
    """The option that says how many episodes an added set has."""

    def check(self) -> None:
        """Raise UsageError for a look that there is not, and where the added sets contradict themselves."""
        for look in self.look:
            if look not in self.edition.looks:
                raise UsageError(f"--look {look}: " + unknown("look", look, self.edition.looks))
        count, added = getattr(self, self.COUNT), self.edition.additions
        if count is not None and not (count >= 1 and any(getattr(self, name) for name in added)):
            *others, last = (f"--{name}" for name in added)
            flag = f"--{self.COUNT.replace('_', '-')} {count}"
            raise UsageError(f"{flag}: expected 1 or more, with {', '.join(others)} or {last}")

    @property
    def config(self) -> HousesConfig:
        """What decides the bytes that are generated."""
        kind = CONFIGS[self.edition.name]
        return kind(**{field.name: getattr(self, field.name) for field in fields(kind)})


@dataclass(frozen=True)
class HousesOptions(_Asked, HousesConfig):
    """Generate houses-r2r and houses-rxr: scenes, navmeshes and episodes, the same bytes for the same options."""

    COUNT = "envdrop_episodes"
    data_root: Path = Path("data")
    """Folder below which datasets/ and scene_datasets/ are written."""
    look: tuple[str, ...] = ()
    """Looks of the same houses and episodes, as splits SPLIT_LOOK: materials (materials, paints and light drawn
    for every house, where all houses share them otherwise), evening (these in dark, warm light), textures
    (materials that no house has otherwise). Added sets are made in them, too."""
    envdrop: bool = False
    """Add the augmentation set of a noisy machine speaker, as split envdrop."""
    speaker: bool = False
    """Add the set of the same speaker without its errors, as split speaker."""
    recolored: bool = False
    """Add environment dropout, as split recolored: train houses recolored and refurnished, with new walks."""
    envdrop_episodes: int | None = None
    """Episodes of each added set; default five times those of train."""

    @property
    def added_episodes(self) -> int | None:
        """Episodes of each set that is added."""
        return self.envdrop_episodes


@dataclass(frozen=True)
class Houses2Options(_Asked, Houses2Config):
    """Generate houses2-r2r and houses2-rxr: houses whose materials, furniture and light differ."""

    COUNT = "added_episodes"
    data_root: Path = Path("data")
    """Folder below which datasets/ and scene_datasets/ are written."""
    look: tuple[str, ...] = ()
    """Further looks of the same houses and episodes, as splits SPLIT_LOOK: evening (dark, warm light), textures
    (materials that no house has otherwise). Added sets are made in them, too."""
    envdrop: bool = False
    """Add environment dropout, as split envdrop: train houses recolored and refurnished, with new walks."""
    noise: bool = False
    """Add the set of a machine speaker that errs, as split noise."""
    speaker: bool = False
    """Add the set of the same speaker without its errors, as split speaker."""
    added_episodes: int | None = None
    """Episodes of each added set; default five times those of train."""
