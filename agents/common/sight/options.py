"""Options of trainings in which a part that sees learns to tell what it sees. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from vlnbench.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class TellingOptions:
    """How much telling counts."""

    semantic_weight: float = 0.0
    """Weight of telling which objects, colors and rooms the parts of a frame show, where sets of questions know
    them (data questions --semantic). What tells them is not kept."""

    def check_telling(self, part: str, parts: Collection[str], cached: bool) -> None:
        """Raise UsageError for what cannot be. part: what sees; parts: what is trained; cached: its features are
        kept."""
        if not 0 <= self.semantic_weight < 1e9:
            raise UsageError(f"--semantic-weight {self.semantic_weight}: expected 0 or more")
        if self.semantic_weight and cached:
            raise UsageError("--feature-cache: encoders that are kept learn nothing; leave --semantic-weight out")
        if self.semantic_weight and part not in parts:
            raise UsageError(f"--semantic-weight: {part} is not in --tunable-parts, so nothing would learn to see")
