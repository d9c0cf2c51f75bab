"""Data that vlnbench makes itself: generated on request, or when a benchmark needs it and it is not there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tabulate import tabulate

from vlnbench.data.benchmarks import Benchmark
from vlnbench.data.houses_config import HousesConfig, HousesOptions
from vlnbench.errors import UsageError
from vlnbench.util.loading import import_module, import_string
from vlnbench.util.progress import Progress, StepProgress, say


def ensure_data(benchmark: Benchmark, data_root: Path, split: str) -> None:
    """Generate a split of a benchmark that needs no download, if it is not there yet.

    Data that are there are taken as they are, and give the configuration of the splits that are not; only another
    version of the generator is refused.
    """
    if benchmark.generator is None:
        return
    houses = import_module(benchmark.generator)
    version, splits = houses.generated(data_root) or (houses.VERSION, ())
    if version == houses.VERSION:
        if split in houses.SPLITS and split not in splits:
            say(f"{split} of {benchmark.name} is not below {data_root} yet: generating it (once)")
            generate_houses(data_root, houses.read_config(data_root) if splits else HousesConfig(), (split,))
    else:
        raise UsageError(
            f"{data_root}: holds data of {version}, but this is {houses.VERSION}; run `vlnbench data houses` "
            "to make them anew, or choose another --data-root"
        )


def generate(options: HousesOptions) -> Iterator[str]:
    """Generate what the options ask for; yields tables of each part when it is there.

    Raises UsageError, with nothing written, for options that contradict each other.
    """
    options.check()
    yield generate_houses(options.data_root, options.config)
    if options.envdrop:
        yield generate_envdrop(options.data_root, options.config, options.envdrop_episodes)


def generate_houses(data_root: Path, config: HousesConfig, splits: Sequence[str] = ()) -> str:
    """Generate splits of the houses benchmarks (none: all), unless they are there; tables of what is there."""
    _warm_up(renderer=False)
    with Progress("generating houses") as progress:
        manifest = import_string("envs.houses.files.dataset:generate")(
            data_root, config, lambda stage, done, n: progress.update(done, n, stage), splits
        )
    rows = [[split, *counts.values()] for split, counts in manifest.counts.items()]
    table = tabulate(rows, headers=["split", *next(iter(manifest.counts.values()))])
    compared = _beside_r2r(manifest.statistics)
    return f"{manifest.version}, seed {config.seed}, below {data_root}\n\n{table}\n\n{compared}"


def generate_envdrop(data_root: Path, config: HousesConfig, episodes: int | None) -> str:
    """Add the augmentation set to houses that are there; returns a table of it."""
    with Progress("generating envdrop") as progress:
        manifest = import_string("envs.houses.files.augment:augment")(
            data_root, config, episodes, None, lambda stage, done, n: progress.update(done, n, stage)
        )
    untrue = f"{manifest.untrue} of {manifest.checked} texts that were checked have a clause that is untrue"
    return (
        f"envdrop: {manifest.episodes} episodes, {manifest.trajectories} trajectories; {untrue}\n\n"
        f"{_beside_r2r({'envdrop': manifest.statistics})}"
    )


def _beside_r2r(statistics: dict[str, dict[str, float]]) -> str:
    """Means per episode beside those of the real dataset."""
    real = import_string("envs.houses.files.statistics:R2R_CE")
    columns = {**statistics, **{f"R2R-CE {split}": means for split, means in real.items()}}
    names = list(next(iter(columns.values())))
    rows = [[name, *(column[name] for column in columns.values())] for name in names]
    return str(tabulate(rows, headers=["mean per episode", *columns], floatfmt=".1f"))


def preview_house(data_root: Path, out: Path, split: str, house: str | None, episodes: int) -> str:
    """Draw a generated house into a PNG file; returns what was drawn."""
    _warm_up(renderer=True)
    drawn: str = import_string("envs.houses.preview.preview:preview")(data_root, out, split, house, episodes)
    return drawn


def _warm_up(renderer: bool) -> None:
    """Get the simulator ready that houses are built, checked and drawn with, with progress if that takes long."""
    with StepProgress() as show:
        for step in import_string("envs.embedded.warmup:WarmUp")(renderer=renderer).steps():
            show(step)
