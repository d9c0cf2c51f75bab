"""Training steps beside those of an older checkout and of the original program."""
