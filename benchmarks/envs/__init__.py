"""The embedded simulator: reading, building and asking navmeshes, drawing, memory."""
