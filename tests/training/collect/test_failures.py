"""Walks that fail among others."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from vlnbench.errors import RunError
from vlnbench.training.collect.collect import walk_all


def test_what_was_walked_is_kept_before_failures_end_it() -> None:
    """More than three of few walks end it at once, and the executor is closed."""
    tasks = [SimpleNamespace(episode=SimpleNamespace(episode_id=str(number))) for number in range(9)]
    closed, said = [], []

    def run(tasks: Any, limits: Any) -> Iterator[Any]:
        try:
            for number, task in enumerate(tasks):
                done = SimpleNamespace(product="walked") if number == 1 else None
                yield SimpleNamespace(task=task, reason="it broke", rollout=done)
        finally:
            closed.append(limits.max_batch)

    executor, progress = SimpleNamespace(run=run), SimpleNamespace(say=said.append)
    made: Any = walk_all(tasks, executor, 2, progress)  # type: ignore[arg-type]
    assert next(made) == "walked"
    with pytest.raises(RunError, match="4 walks failed, the last one of episode 4: it broke;"):
        next(made)
    assert (closed, len(said)) == ([2], 4)
