"""The generator of the houses benchmark: what `vlnbench.data.generator.Generator` asks for.

The command line imports this module for its options; whatever needs numpy or the simulator is imported inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.houses.files.manifest import SCENES_DIR, SPLITS, VERSION, generated, house_names, identity, read_config
from envs.houses.options import HousesConfig, HousesOptions
from vlnbench.util.progress import Progress, StepProgress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from envs.houses.files.questions import Viewpoint
    from envs.houses.files.verify import Verdict
    from vlnbench.interfaces import Episode


class HousesGenerator:
    """Houses with instructions, in the file formats of R2R-CE and RxR-CE."""

    options = HousesOptions
    version = VERSION
    splits = SPLITS

    def present(self, data_root: Path) -> tuple[str, tuple[str, ...]] | None:
        return generated(data_root)

    def add(self, data_root: Path, split: str) -> None:
        there = generated(data_root)
        generate_houses(data_root, read_config(data_root) if there and there[1] else HousesConfig(), (split,))

    def generate(self, options: HousesOptions) -> Iterator[str]:
        options.check()
        yield generate_houses(options.data_root, options.config)
        if options.envdrop:
            yield _generate_envdrop(options.data_root, options.config, options.envdrop_episodes)

    def verify(self, data_root: Path, episodes: Sequence[Episode], augmented: bool) -> Verdict:
        from envs.houses.files.verify import verify

        return verify(data_root, episodes, "speaker" if augmented else None)

    def preview(self, data_root: Path, out: Path, split: str, house: str | None, episodes: int) -> str:
        from envs.houses.preview.preview import preview

        _warm_up(renderer=True)
        return preview(data_root, out, split, house, episodes)

    def view_source(self, data_root: Path) -> HouseViews:
        return HouseViews(data_root)


class HouseViews:
    """Views of the train houses below a data root."""

    def __init__(self, data_root: Path) -> None:
        self._root = data_root
        self.scenes_dir = data_root / SCENES_DIR
        self.identity = {"houses_sha256": identity(data_root)}

    @property
    def categories(self) -> Mapping[str, Sequence[str]]:
        from envs.houses.files.semantics import CATEGORIES

        return CATEGORIES

    def scenes(self) -> list[str]:
        return house_names(read_config(self._root))["train"]

    def views(self, scene: str, seed: int, count: int) -> tuple[str, list[Viewpoint]]:
        from envs.houses.files.questions import house_views

        return house_views(self._root, scene, seed, count)

    def semantics(
        self, scene: str
    ) -> Callable[[Any, NDArray[np.float32], float], tuple[NDArray[np.uint8], dict[str, str]]]:
        from envs.houses.files.semantics import Semantics

        return Semantics(self._root, scene).look


def generate_houses(data_root: Path, config: HousesConfig, splits: Sequence[str] = ()) -> str:
    """Generate splits of the houses benchmarks (none: all), unless they are there; tables of what is there."""
    from tabulate import tabulate

    from envs.houses.files.dataset import generate

    _warm_up(renderer=False)
    with Progress("generating houses") as progress:
        manifest = generate(data_root, config, lambda stage, done, n: progress.update(done, n, stage), splits)
    rows = [[split, *counts.values()] for split, counts in manifest.counts.items()]
    table = tabulate(rows, headers=["split", *next(iter(manifest.counts.values()))])
    compared = _beside_r2r(manifest.statistics)
    return f"{manifest.version}, seed {config.seed}, below {data_root}\n\n{table}\n\n{compared}"


def _generate_envdrop(data_root: Path, config: HousesConfig, episodes: int | None) -> str:
    """Add the augmentation set to houses that are there; returns a table of it."""
    from envs.houses.files.augment import augment

    with Progress("generating envdrop") as progress:
        manifest = augment(
            data_root, config, episodes, None, lambda stage, done, n: progress.update(done, n, stage)
        )
    untrue = f"{manifest.untrue} of {manifest.checked} texts that were checked have a clause that is untrue"
    return (
        f"envdrop: {manifest.episodes} episodes, {manifest.trajectories} trajectories; {untrue}\n\n"
        f"{_beside_r2r({'envdrop': manifest.statistics})}"
    )


def _beside_r2r(statistics: dict[str, dict[str, float]]) -> str:
    """Means per episode beside those of the real dataset."""
    from tabulate import tabulate

    from envs.houses.files.statistics import R2R_CE

    columns = {**statistics, **{f"R2R-CE {split}": means for split, means in R2R_CE.items()}}
    names = list(next(iter(columns.values())))
    rows = [[name, *(column[name] for column in columns.values())] for name in names]
    return str(tabulate(rows, headers=["mean per episode", *columns], floatfmt=".1f"))


def _warm_up(renderer: bool) -> None:
    """Get the simulator ready that houses are built, checked and drawn with, with progress if that takes long."""
    from envs.embedded.warmup import WarmUp

    with StepProgress() as show:
        for step in WarmUp(renderer=renderer).steps():
            show(step)


GENERATOR = HousesGenerator()
