"""Options of trainings and plans by rewards, of any family."""

from __future__ import annotations

from typing import Any

from vlnbench.training.objectives import get_objective

GRPO = get_objective("grpo")


def rewarded(kind: Any) -> Any:
    """A family's class of options with those of rewards."""
    return GRPO.train_options(kind)


def planned(kind: Any) -> Any:
    """The same of planning."""
    return GRPO.plan_options(kind)
