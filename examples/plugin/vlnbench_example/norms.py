"""What the family does; loaded when it is needed."""

from __future__ import annotations

from agents.streamvln.training.family import StreamVLNFamily


class FrozenNorms(StreamVLNFamily):
    """StreamVLN whose norms stay as the checkpoint has them."""

    def can_train(self, name: str) -> bool:
        return "norm" not in name and super().can_train(name)
