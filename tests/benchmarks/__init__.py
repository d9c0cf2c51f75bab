"""Tests of the benchmarks that keep a record."""
