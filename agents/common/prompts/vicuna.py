"""Conversations as Vicuna v1 writes them."""

from __future__ import annotations

from collections.abc import Sequence

SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
    "detailed, and polite answers to the user's questions."
)


def prompt(turns: Sequence[tuple[str, str | None]]) -> str:
    """A conversation; None: what is to be answered."""
    text = f"{SYSTEM} "
    for asked, told in turns:
        text += f"USER: {asked} ASSISTANT:" + ("" if told is None else f" {told}</s>")
    return text
