"""A model family: StreamVLN whose norms stay as the checkpoint has them."""

from __future__ import annotations

from dataclasses import replace

from agents.streamvln.options import FAMILY as STREAMVLN

FAMILY = replace(STREAMVLN, name="frozen-norms", trains="vlnbench_example.norms:FrozenNorms")
"""Read by the command line, so this module loads nothing heavy."""
