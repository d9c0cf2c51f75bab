"""What a run is to find out, as `--until` takes it: `SR ± 2`, or `SR vs RUN`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vlnbench.errors import UsageError

METRICS_UNTIL = ("SR", "SPL", "OS", "nDTW", "SDTW", "CLS")
"""Metrics between 0 and 100 %; the others have no bound that an interval could start from."""

_WIDTH = re.compile(r"(\w+)\s*(?:±|\+-|\+/-)\s*(\d{1,2}(?:\.\d{1,3})?)\s*%?")
_VERSUS = re.compile(r"(\w+)\s+vs\.?\s+(\S.*)")


@dataclass(frozen=True, slots=True)
class Rule:
    """points: half the width of the interval at which the run may stop. against: folder of a run, the difference
    to which is to be told from 0 instead.
    """

    metric: str
    points: float | None = None
    against: Path | None = None

    def __str__(self) -> str:
        return f"{self.metric} ± {self.points:g}" if self.against is None else f"{self.metric} vs {self.against}"


def parse_until(text: str) -> Rule | None:
    """None for an empty text. Raises UsageError for what is no rule."""
    if not text.strip():
        return None
    width, versus = _WIDTH.fullmatch(text.strip()), _VERSUS.fullmatch(text.strip())
    match = width or versus
    if match is None or match[1] not in METRICS_UNTIL or (width is not None and float(width[2]) <= 0):
        raise UsageError(
            f"--until {text!r}: expected 'SR ± 2' (or +-; in points), or 'SR vs RUN' with a run folder; metrics: "
            f"{', '.join(METRICS_UNTIL)}"
        )
    if versus is not None:
        return Rule(match[1], against=Path(versus[2]))
    return Rule(match[1], points=float(match[2]))
