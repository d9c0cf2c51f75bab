"""The formats in which commands print, as their option --format names them. Loads nothing."""

from __future__ import annotations

from typing import Literal

Format = Literal["text", "csv", "md", "latex", "json"]
"""How a table is printed; `text` is for a terminal and as wide as that."""

Plain = Literal["text", "json"]
"""The same of what is no table."""
