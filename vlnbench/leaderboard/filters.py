"""Which rows a table shows: options of the commands that print one, and what they leave."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vlnbench.errors import UsageError, unknown


@dataclass(frozen=True, kw_only=True)
class Filters:
    """What is shown. Of several names any counts; rows of which they are not known are left out."""

    benchmark: tuple[str, ...] = ()
    """Only these benchmarks (r2r-ce), or datasets under any protocol (R2R-CE), as they are written."""
    split: tuple[str, ...] = ()
    """Only these splits."""
    sensors: tuple[str, ...] = ()
    """Only these classes of sensors, such as RGB or RGB-D."""
    backbone: tuple[str, ...] = ()
    """Only backbones with one of these in their name, such as Qwen2.5-VL."""
    since: str = ""
    """Only from this date on, such as 2026-10: of a run when it was begun, of a paper by its arXiv id."""
    before: str = ""
    """Only from before this date."""
    metrics: tuple[str, ...] = ()
    """Only these metrics, such as SR SPL NE."""
    own: tuple[str, ...] = ()
    """Mark these as yours: names of runs, agents or methods."""

    def __post_init__(self) -> None:
        for name in ("since", "before"):
            if (given := getattr(self, name)) and not re.fullmatch(r"\d{4}(-\d\d){0,2}", given):
                raise UsageError(f"--{name}: expected a date such as 2026, 2026-10 or 2026-10-31, found {given!r}")

    @property
    def narrow(self) -> bool:
        """Whether they leave anything out."""
        names = ("benchmark", "split", "sensors", "backbone", "since", "before")
        return any(getattr(self, name) for name in names)

    def keep(
        self,
        names: Iterable[str | None],
        split: str,
        sensors: str | None,
        backbone: str | None,
        date: str | None,
    ) -> bool:
        """Whether a row is shown. names: by which its benchmark is called. date: YYYY-MM or YYYY-MM-DD."""
        return (
            (not self.benchmark or bool({*self.benchmark} & {*names}))
            and (not self.split or split in self.split)
            and _is_one(self.sensors, [sensors])
            and (not self.backbone or any(each.lower() in (backbone or "").lower() for each in self.backbone))
            and (not self.since or (date is not None and date >= self.since[: len(date)]))
            and (not self.before or (date is not None and date < self.before))
        )

    def measured(self, known: Sequence[str]) -> tuple[str, ...]:
        """The metrics that are shown, in the order in which they were asked for. Raises UsageError for others."""
        by_name = {name.lower(): name for name in known}
        for name in self.metrics:
            if name.lower() not in by_name:
                raise UsageError(f"--metrics: {unknown('metric', name, known)}")
        return tuple(dict.fromkeys(by_name[name.lower()] for name in self.metrics)) or tuple(known)

    def marked(self, names: Iterable[str | None]) -> bool:
        """Whether a row that is called so is the user's."""
        return bool(self.own) and _is_one(self.own, names)


OURS = " (ours)"
"""What stands behind the name of a row that is the user's."""


def _is_one(wanted: Iterable[str], names: Iterable[str | None]) -> bool:
    known = {name.lower() for name in names if name}
    return not wanted or any(each.lower() in known for each in wanted)
