"""Queries on a navmesh, equal to Detour's in single precision."""
