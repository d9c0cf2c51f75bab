"""Commands that are killed just before each change of a file, and resumed."""
