"""The generator of the houses benchmark: what `vlnbench.data.generator.Generator` asks for.

The command line imports this module for its options; whatever needs numpy or the simulator is imported inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.houses.edition import HOUSES, HOUSES_2, SCENES_DIR, SPEAKER, Edition
from envs.houses.files.manifest import generated, house_names, identity, read_config
from envs.houses.options import CONFIGS, Houses2Options, HousesConfig, HousesOptions
from vlnbench.util.progress import Progress, StepProgress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from envs.houses.files.questions import Viewpoint
    from envs.houses.files.verify import Verdict
    from vlnbench.interfaces import Episode


class HousesGenerator:
    """Houses with instructions, in the file formats of R2R-CE and RxR-CE."""

    def __init__(self, edition: Edition, options: type[HousesOptions | Houses2Options]) -> None:
        self._edition = edition
        self.options: type[Any] = options
        self.version = edition.version
        self.splits = edition.splits

    def present(self, data_root: Path) -> tuple[str, tuple[str, ...]] | None:
        return generated(data_root, self._edition)

    def add(self, data_root: Path, split: str) -> None:
        there = self.present(data_root)
        config = read_config(data_root, self._edition) if there and there[1] else CONFIGS[self._edition.name]()
        generate_houses(data_root, config, (split,))

    def generate(self, options: HousesOptions | Houses2Options) -> Iterator[str]:
        options.check()
        config = options.config
        drawn = self._edition.drawn
        splits = (*drawn, *(f"{split}_{look}" for look in options.look for split in drawn))
        yield generate_houses(options.data_root, config, splits)
        for split in self._edition.additions:
            if getattr(options, split):
                for each in (split, *(f"{split}_{look}" for look in options.look)):
                    yield _add(options.data_root, config, each, options.added_episodes)

    def verify(self, data_root: Path, episodes: Sequence[Episode], split: str) -> Verdict:
        from envs.houses.files.verify import verify

        voice = SPEAKER if split in self._edition.added else None
        return verify(data_root, self._edition, episodes, voice)

    def errs(self, split: str) -> bool:
        return self._edition.drawn_as(split)[0] == self._edition.noisy

    def preview(self, data_root: Path, out: Path, split: str, house: str | None, episodes: int) -> str:
        from envs.houses.preview.preview import preview

        _warm_up()
        return preview(data_root, self._edition, out, split, house, episodes)

    def view_source(self, data_root: Path) -> HouseViews:
        return HouseViews(data_root, self._edition)


class HouseViews:
    """Views of the train houses below a data root."""

    def __init__(self, data_root: Path, edition: Edition) -> None:
        self._root, self._config = data_root, read_config(data_root, edition)
        self.scenes_dir = data_root / SCENES_DIR
        self.identity = {"houses_sha256": identity(data_root, edition)}

    @property
    def categories(self) -> Mapping[str, Sequence[str]]:
        from envs.houses.files.semantics import CATEGORIES

        return CATEGORIES

    def scenes(self) -> list[str]:
        return house_names(self._config)["train"]

    def views(self, scene: str, seed: int, count: int) -> tuple[str, list[Viewpoint]]:
        from envs.houses.files.questions import house_views

        return house_views(self._root, self._config, scene, seed, count)

    def semantics(
        self, scene: str
    ) -> Callable[[Any, NDArray[np.float32], float], tuple[NDArray[np.uint8], dict[str, str]]]:
        from envs.houses.files.semantics import Semantics
        from envs.houses.plan.house import make_house

        return Semantics(make_house(scene, self._config)).look


def generate_houses(data_root: Path, config: HousesConfig, splits: Sequence[str] = ()) -> str:
    """Generate splits of an edition (none: all that are drawn), unless they are there; tables of what is there."""
    from tabulate import tabulate

    from envs.houses.files.dataset import generate

    _warm_up()
    with Progress("generating houses") as progress:
        manifest = generate(data_root, config, lambda stage, done, n: progress.update(done, n, stage), splits)
    rows = [[split, *counts.values()] for split, counts in manifest.counts.items()]
    table = tabulate(rows, headers=["split", *next(iter(manifest.counts.values()))])
    compared = _beside_r2r(manifest.statistics)
    return f"{manifest.version}, seed {config.seed}, below {data_root}\n\n{table}\n\n{compared}"


def _add(data_root: Path, config: HousesConfig, split: str, episodes: int | None) -> str:
    """Add a set to train on to houses that are there; returns a table of it."""
    from envs.houses.files.augment import augment

    with Progress(f"generating {split}") as progress:
        manifest = augment(
            data_root,
            config,
            split,
            episodes,
            progress=lambda stage, done, n: progress.update(done, n, stage),
        )
    untrue = f"{manifest.untrue} of {manifest.checked} texts that were checked have a clause that is untrue"
    return (
        f"{split}: {manifest.episodes} episodes, {manifest.trajectories} trajectories; {untrue}\n\n"
        f"{_beside_r2r({split: manifest.statistics})}"
    )


def _beside_r2r(statistics: dict[str, dict[str, float]]) -> str:
    """Means per episode beside those of the real dataset."""
    from tabulate import tabulate

    from envs.houses.files.statistics import R2R_CE

    columns = {**statistics, **{f"R2R-CE {split}": means for split, means in R2R_CE.items()}}
    names = list(next(iter(columns.values())))
    rows = [[name, *(column[name] for column in columns.values())] for name in names]
    return str(tabulate(rows, headers=["mean per episode", *columns], floatfmt=".1f"))


def _warm_up() -> None:
    """Get the simulator ready that houses are built, checked and drawn with, with progress if that takes long."""
    from envs.embedded.warmup import WarmUp

    with StepProgress() as show:
        for step in WarmUp().steps():
            show(step)


GENERATOR = HousesGenerator(HOUSES, HousesOptions)
GENERATOR_2 = HousesGenerator(HOUSES_2, Houses2Options)
