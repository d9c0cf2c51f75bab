"""Tests of the embedded simulator."""
