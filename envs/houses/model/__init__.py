"""A house as lit, textured triangles."""
