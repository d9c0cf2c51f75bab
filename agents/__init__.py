"""Agents: one module or folder each, found by name in `agents.table` or by import string."""

VLNBENCH = True  # lets vlnbench tell its own top-level package from another distribution's `agents`
