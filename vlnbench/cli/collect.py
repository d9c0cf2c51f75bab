"""The command `vlnbench collect`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlnbench.cli.selected import AGENT, Selection
from vlnbench.training.collect.options import CollectOptions


@dataclass(frozen=True)
class Collect(CollectOptions):
    """Walk the episodes of a split and write trajectories to train on (StreamVLN's layout). Resumable.

    The reference paths are walked; with --dagger a trained model drives and the expert corrects it.
    """

    selections: ClassVar[tuple[Selection, ...]] = (AGENT,)

    def run(self) -> None:
        from vlnbench.training.collect.collect import collect, format_collected

        print(format_collected(collect(self), self.out))
