"""The command `vlnbench score`."""

from __future__ import annotations

from dataclasses import dataclass

from vlnbench.training.score.options import ScoreOptions


@dataclass(frozen=True, kw_only=True)
class Score(ScoreOptions):
    """Say how well a checkpoint repeats expert walks, action by action; no simulator runs.

    Beside its own frames it is shown gray ones and those of another walk: what sight is worth to it.
    """

    def run(self) -> None:
        from vlnbench.training.score.score import format_scores, score

        print(format_scores(score(self)))
