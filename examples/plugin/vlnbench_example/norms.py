"""A family that overrides one method of another's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from agents.streamvln.family import StreamVLNTrains
from vlnbench.training.family.trains import PartRule, rule_of


class FrozenNorms(StreamVLNTrains):
    """StreamVLN whose norms stay as the checkpoint has them."""

    def parts(self, model: nn.Module, options: Any) -> Sequence[PartRule]:
        """The table of StreamVLN, with a line before it for each norm."""
        table = super().parts(model, options)
        norms = [name for name, _ in model.named_parameters() if "norm" in name]
        return [*(PartRule(name, rule_of(table, name).part, trains="never") for name in norms), *table]
