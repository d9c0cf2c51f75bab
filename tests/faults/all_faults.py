"""All faults, in the order of the table."""

from __future__ import annotations

from tests.faults import file_systems, folders, models, processes, surroundings
from tests.faults.registry import FAULTS

__all__ = ["FAULTS", "file_systems", "folders", "models", "processes", "surroundings"]
