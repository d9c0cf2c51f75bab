"""Embedded simulator: pip-only, reads the same scenes and navmeshes as habitat-sim."""
