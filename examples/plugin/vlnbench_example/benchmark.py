"""The houses, walked by a body that turns by 30 degrees."""

from __future__ import annotations

from pathlib import Path

from vlnbench.data.benchmark_files import read_benchmark
from vlnbench.data.benchmarks import BENCHMARKS

BENCHMARK = read_benchmark(Path(__file__).with_suffix(".yaml"), BENCHMARKS)
