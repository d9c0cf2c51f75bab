"""Data of a benchmark that are generated when they are needed and not there."""

from __future__ import annotations

from pathlib import Path

from vlnbench.data.benchmarks import Benchmark
from vlnbench.data.generator import get_generator
from vlnbench.errors import UsageError
from vlnbench.util.progress import say


def ensure_data(benchmark: Benchmark, data_root: Path, split: str) -> None:
    """Generate a split of a benchmark that needs no download, if it is not there yet.

    Data that are there are taken as they are, and give the configuration of the splits that are not; only another
    version of the generator is refused.
    """
    if benchmark.generator is None:
        return
    generator = get_generator(benchmark.generator)
    version, splits = generator.present(data_root) or (generator.version, ())
    if version != generator.version:
        raise UsageError(
            f"{data_root}: holds data of {version}, but this is {generator.version}; run "
            f"`vlnbench data {benchmark.generator}` to make them anew, or choose another --data-root"
        )
    if split in generator.splits and split not in splits:
        say(f"{split} of {benchmark.name} is not below {data_root} yet: generating it (once)")
        generator.add(data_root, split)
