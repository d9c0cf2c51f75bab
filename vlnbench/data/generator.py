"""What a generator of benchmarks is asked for: the contract, and how one is found.

A benchmark whose data are made on this machine names its generator by import string (`Benchmark.generator`), so
one of another distribution brings its own. Those that ship are in `vlnbench.defaults.GENERATORS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vlnbench.defaults import GENERATORS
from vlnbench.errors import UsageError, unknown
from vlnbench.util.loading import import_string

if TYPE_CHECKING:  # the command line reads this module
    import numpy as np
    from numpy.typing import NDArray

    from vlnbench.data.protocol import Benchmark
    from vlnbench.interfaces import Episode, Quaternion, Vec3


class Verdict(Protocol):
    """How many instructions were checked and are untrue or ambiguous, and the first such problem ("": none)."""

    checked: int
    wrong: int
    first: str


class Viewpoint(Protocol):
    """Where a camera stands (meters) and looks, with questions about what it shows and their answers."""

    @property
    def position(self) -> Vec3: ...
    @property
    def rotation(self) -> Quaternion: ...
    @property
    def pairs(self) -> tuple[tuple[str, str], ...]: ...


class ViewSource(Protocol):
    """Views of the generated train scenes below a data root, for `vlnbench data questions`.

    scenes_dir: folder that scene files are relative to. identity: hash of what decides the scenes, under the name
    that it has in the manifests of sets. categories: by channel of the semantic images, the names that its numbers
    mean.
    """

    scenes_dir: Path
    identity: Mapping[str, str]
    categories: Mapping[str, Sequence[str]]

    def scenes(self) -> list[str]:
        """Names of the train scenes. Raises UsageError if what lies there does not tell."""
        ...

    def views(self, scene: str, seed: int, count: int) -> tuple[str, Sequence[Viewpoint]]:
        """Scene file of a scene, and views of it: the same for the same seed."""
        ...

    def semantics(
        self, scene: str
    ) -> Callable[[Any, NDArray[np.float32], float], tuple[NDArray[np.uint8], dict[str, str]]]:
        """Of a view of the scene, its depth (height, width; meters) and where depth ends: an image (height, width,
        3) of numbers of `categories`, and further questions with their answers."""
        ...


class Generator(Protocol):
    """What makes the data of benchmarks on this machine. Importing it must load nothing heavy.

    options: frozen dataclass of `vlnbench data NAME`, whose docstring is the command's; its `check()` raises
    UsageError. version: changes whenever the same options give other bytes. splits: those that are made when one
    is asked for.
    """

    options: type[Any]
    version: str
    splits: tuple[str, ...]

    def present(self, data_root: Path) -> tuple[str, tuple[str, ...]] | None:
        """Version and finished splits of what lies below a data root. Raises UsageError if they cannot be read."""
        ...

    def add(self, data_root: Path, split: str) -> None:
        """Generate a split, with the options of those that are there; with the defaults where there is none."""
        ...

    def generate(self, options: Any) -> Iterator[str]:
        """Generate what the options ask for; yields a table of each part when it is there.

        Raises UsageError, with nothing written, for options that contradict each other.
        """
        ...

    def verify(self, data_root: Path, episodes: Sequence[Episode], split: str) -> Verdict:
        """Compare instructions of a split with scenes and ground truth."""
        ...

    def errs(self, split: str) -> bool:
        """Whether instructions of a split are wrong at times, as they are meant to be."""
        ...

    def preview(self, data_root: Path, out: Path, split: str, house: str | None, episodes: int) -> str:
        """Draw a scene (None: the first of the split) and its episodes into a PNG file; returns what was drawn."""
        ...

    def view_source(self, data_root: Path) -> ViewSource:
        """Views of what was generated. Raises UsageError if what lies there cannot be read."""
        ...


def generator_of(benchmark: Benchmark) -> Generator:
    """What makes the data of a benchmark. Raises UsageError if they are downloaded."""
    if benchmark.generator is None:
        raise UsageError(f"--benchmark {benchmark.name}: its data are downloaded; choose a generated one")
    return get_generator(benchmark.generator)


def get_generator(name: str) -> Generator:
    """A generator by a name of `GENERATORS` or by import string. Raises UsageError for any other name."""
    if name not in GENERATORS and ":" not in name:
        raise UsageError(unknown("generator", name, GENERATORS))
    found: Generator = import_string(GENERATORS.get(name, name))
    return found
