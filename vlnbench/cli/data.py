"""The commands `vlnbench data …`: generate, get, check, draw and render data, make questions, hand on walks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

from tyro.conf import Positional, subcommand

from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.generator import generator_of, get_generator
from vlnbench.defaults import BENCHMARK, GENERATORS
from vlnbench.errors import UsageError
from vlnbench.training.collect.options import QuestionsOptions, RenderOptions

if TYPE_CHECKING:
    from vlnbench.data.check import Item


def _generates(name: str) -> Any:
    """The command `vlnbench data NAME` of a generator: its options, which run it."""
    generator = get_generator(name)

    def run(self: Any) -> None:
        for table in generator.generate(self):
            print(table)

    members = {"run": run, "__doc__": generator.options.__doc__, "__module__": __name__}
    return dataclass(frozen=True)(type(generator.options.__name__, (generator.options,), members))


@dataclass(frozen=True)
class Check:
    """Check the data of benchmarks: files, numbers of episodes, fields, ground truth and scenes.

    Without --benchmark also the trajectory sets that StreamVLN and JanusVLN published: which folders are missing.
    With --sets folders of training data instead, as a family reads them.
    """

    benchmark: str | None = None
    """Name from `vlnbench list`, or a file .yaml or .py; default all of which there are files."""
    split: str | None = None
    """Split; default all of which there are files."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""
    sets: tuple[str, ...] = ()
    """Folders of training sets, such as trajectory_data/R2R: fields, answers and files that are missing."""
    family: str = ""
    """Whose training reads the sets: a name from `vlnbench list`, or an import string."""

    def run(self) -> None:
        if bool(self.sets) != bool(self.family) or (self.sets and (self.benchmark or self.split)):
            raise UsageError("--sets: expected with --family, and without --benchmark and --split")
        failed, what = 0, ", ".join(self.sets) or f"the data below {self.data_root}"
        for item in self._items():
            print(item, flush=True)
            failed += not item.ok
        if failed:
            raise UsageError(f"{failed} checks of {what} failed")

    def _items(self) -> Iterator[Item]:
        if self.sets:
            from vlnbench.training.data import check_sets
            from vlnbench.training.family.find import get_family

            return check_sets(get_family(self.family), [Path(each) for each in self.sets])
        from vlnbench.data.check import check_data

        return check_data(self.data_root, self.benchmark, self.split)


@dataclass(frozen=True)
class Fetch:
    """Say what to download from where and under which license, and check what is there. It downloads nothing."""

    what: str | None = None
    """What to get: mp3d, r2r-ce, rxr-ce, scalevln, streamvln-trajectories, janusvln-trajectories; default a list
    of them."""
    data_root: Path = Path("data")
    """Folder that holds, or is to hold, datasets/ and scene_datasets/."""

    def run(self) -> None:
        from vlnbench.data.downloads import DOWNLOADS, describe

        if self.what is None:
            for name, download in DOWNLOADS.items():
                print(f"{name:<24}{download.holds}")
            print("steps and license of one: vlnbench data fetch --what NAME")
            return
        for line in describe(self.what, self.data_root):
            print(line)
        found = []
        for item in DOWNLOADS[self.what].look(self.data_root):
            print(item, flush=True)
            found.append(item)
        failed = sum(not item.ok for item in found)
        if failed:
            raise UsageError(f"{failed} of {len(found)} checks of {self.what} below {self.data_root} failed")
        if not found:
            print(f"nothing of it is below {self.data_root} yet; give this command again to check it when it is")


@dataclass(frozen=True)
class Preview:
    """Draw a house of a generated benchmark: plans, paths, instructions, and what the camera sees."""

    out: Path
    """PNG file to write."""
    benchmark: str = BENCHMARK
    """Generated benchmark: houses-r2r or houses2-r2r."""
    house: str | None = None
    """Name of a house of the split; default the first."""
    split: str = "val_unseen"
    """Split whose episodes are drawn."""
    episodes: int = 4
    """How many episodes are drawn."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""

    def run(self) -> None:
        shown = generator_of(get_benchmark(self.benchmark))
        print(shown.preview(self.data_root, self.out, self.split, self.house, self.episodes))


@dataclass(frozen=True)
class Questions(QuestionsOptions):
    """Make a set of questions about images of the train houses to train on (LLaVA's layout). Resumable."""

    def run(self) -> None:
        from vlnbench.training.collect.questions import format_made, make_questions

        print(format_made(make_questions(self), self.out))


@dataclass(frozen=True)
class Render(RenderOptions):
    """Render the frames of walks that were published as actions alone, such as StreamVLN's EnvDrop. Resumable.

    Each walk is done again from where its episode begins; what does not end at the goal is left out.
    """

    folder: Positional[Path]

    def run(self) -> None:
        from vlnbench.training.collect.render import render

        print(render(self))


@dataclass(frozen=True)
class LeRobot:
    """Write walks that `vlnbench collect` made as a LeRobot dataset: frames, actions, the instruction as task."""

    folder: Positional[Path]
    """Folder of the walks (annotations.json), such as trajectory_data/R2R."""
    out: Path
    """Folder to make."""
    fps: int = 3
    """Steps per second of the timestamps; a step has no duration of its own."""
    videos: bool = False
    """Compress frames to videos, which is smaller and changes them; default images as they are."""

    def run(self) -> None:
        from vlnbench.util.loading import import_string

        written = import_string("agents.common.sets.lerobot:write_lerobot")(
            self.folder, self.out, self.fps, self.videos
        )
        print(f"{written.episodes} episodes, {written.frames} frames: {self.out}")


DATA = "Generate, get, check and draw data; hand collected walks to other projects."

_GENERATED: Any = tuple(Annotated[_generates(name), subcommand(name, prefix_name=False)] for name in GENERATORS)

Data: Any = Union[
    (
        *_GENERATED,
        Annotated[Check, subcommand("check", prefix_name=False)],
        Annotated[Fetch, subcommand("fetch", prefix_name=False)],
        Annotated[Preview, subcommand("preview", prefix_name=False)],
        Annotated[Questions, subcommand("questions", prefix_name=False)],
        Annotated[Render, subcommand("render", prefix_name=False)],
        Annotated[LeRobot, subcommand("lerobot", prefix_name=False)],
    )
]
