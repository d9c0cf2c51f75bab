"""Kinds of files to fuzz: a module each, with the interface of `tests.fuzz.judge.Kind`."""
