"""Fuzzing: files that nobody would write, and the limits within which each has to be read or refused."""
