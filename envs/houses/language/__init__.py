"""Instructions: written, read back and checked, in four languages."""
