"""Files on disk: replaced in one step, locked, read within bounds and checked field by field."""
