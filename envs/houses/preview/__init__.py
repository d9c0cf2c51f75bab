"""One picture of a generated house."""
