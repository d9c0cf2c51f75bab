"""What the generated benchmark is made of: one frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vlnbench.errors import UsageError


@dataclass(frozen=True)
class HousesConfig:
    """Size and seed of a generated benchmark. The same values give the same bytes.

    `train_houses` serve the splits train and val_seen, `val_unseen_houses` are further houses. Episode counts are
    upper bounds that a house with enough distinct trajectories always reaches; up to three episodes share a
    trajectory, as in R2R. Raises UsageError for values outside the ranges in `_RANGES`.
    """

    seed: int = 0
    train_houses: int = 12
    val_unseen_houses: int = 5
    train_episodes: int = 600
    val_seen_episodes: int = 100
    val_unseen_episodes: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            low, high = _RANGES[field.name]
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise UsageError(f"houses: {field.name} = {value!r}: give a whole number from {low} to {high}")


_RANGES = {
    "seed": (0, 2**31 - 1),
    "train_houses": (1, 1000),
    "val_unseen_houses": (1, 1000),
    "train_episodes": (1, 1_000_000),
    "val_seen_episodes": (1, 1_000_000),
    "val_unseen_episodes": (1, 1_000_000),
}
