"""What models said, as a page shows it: columns for its script, and figures of all."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlnbench.evaluation.answers.file import each_answers, encode_answers
from vlnbench.evaluation.records import RowKey
from vlnbench.rollout.answers import Answered

MOST_BYTES = 16_000_000
"""Of answers in a page, so that a browser can show it; the figures are of all."""


@dataclass(slots=True)
class Said:
    """Of the episodes of a run: columns as of `encode_answers` by key, how many were left out, and sums."""

    columns: dict[RowKey, dict[str, Any]] = field(default_factory=dict)
    left_out: int = 0
    answers: int = 0
    unparsable: int = 0
    seconds: float = 0.0
    sums: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By field of `Answer`: of how many it is known, and what that adds up to."""

    def add(self, answers: Collection[Answered]) -> None:
        """Count answers."""
        self.answers += len(answers)
        self.unparsable += sum(each.answer.unparsable for each in answers)
        self.seconds += sum(each.seconds for each in answers)
        for name in _FIGURES:
            known = [value for each in answers if (value := getattr(each.answer, name)) is not None]
            count, total = self.sums.get(name, (0, 0))
            self.sums[name] = count + len(known), total + sum(known)


def read_said(folder: Path, keys: Collection[RowKey]) -> Said:
    """What was said in some episodes of a run folder."""
    found, left = Said(), MOST_BYTES
    for key, answers in each_answers(folder, frozenset(keys)):
        found.add(answers)
        columns = encode_answers(answers)
        left -= len(json.dumps(columns))
        if left < 0:
            found.left_out += 1
        else:
            found.columns[key] = columns
    return found


_FIGURES: Mapping[str, str] = {
    "prompt_tokens": "tokens of a prompt",
    "images": "frames of a prompt",
    "answer_tokens": "tokens of an answer",
    "log_probability": "log-probability of an answer",
}


def figures(said: Said) -> list[tuple[str, str]]:
    """Names and values: counts, and means over all answers that are kept."""
    if not said.answers:
        return []
    share = 100 * said.unparsable / said.answers
    found = [
        ("answers", f"{said.answers:,}"),
        ("unparsable", f"{said.unparsable:,} ({share:.1f} %)"),
        ("seconds of an answer", f"{said.seconds / said.answers:.3g}"),
    ]
    for name, label in _FIGURES.items():
        count, total = said.sums[name]
        if count:
            found.append((label, f"{total / count:,.4g}"))
    return found
