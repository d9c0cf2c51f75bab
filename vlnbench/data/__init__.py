"""Benchmarks (protocols), dataset layouts, episode readers, checks, and generated data."""
