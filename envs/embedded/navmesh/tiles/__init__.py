"""A navmesh as stored data: Detour tiles, their files, settings and islands."""
