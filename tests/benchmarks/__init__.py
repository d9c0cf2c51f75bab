"""Measurements to run by hand, and tests of those that keep a record."""
