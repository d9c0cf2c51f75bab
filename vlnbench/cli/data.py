"""The commands `vlnbench data …`: generate, check and draw data, make questions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from tyro.conf import subcommand

from vlnbench.data.houses_config import HousesConfig
from vlnbench.errors import UsageError


@dataclass(frozen=True)
class Houses(HousesConfig):
    """Generate houses-r2r and houses-rxr: scenes, navmeshes and episodes, the same bytes for the same options."""

    data_root: Path = Path("data")
    """Folder below which datasets/ and scene_datasets/ are written."""
    envdrop: bool = False
    """Add the augmentation set of a noisy machine speaker, as split envdrop."""
    envdrop_episodes: int | None = None
    """Its episodes; default five times those of train."""

    def run(self) -> None:
        from vlnbench.data.generate import generate_envdrop, generate_houses

        if self.envdrop_episodes is not None and not (self.envdrop and self.envdrop_episodes >= 1):
            raise UsageError(f"--envdrop-episodes {self.envdrop_episodes}: expected 1 or more, with --envdrop")
        config = HousesConfig(**{field.name: getattr(self, field.name) for field in fields(HousesConfig)})
        print(generate_houses(self.data_root, config))
        if self.envdrop:
            print(generate_envdrop(self.data_root, config, self.envdrop_episodes))


@dataclass(frozen=True)
class Check:
    """Check the data of benchmarks: files, numbers of episodes, fields, ground truth and scenes."""

    benchmark: str | None = None
    """Name from `vlnbench list`; default all of which there are files."""
    split: str | None = None
    """Split; default all of which there are files."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""

    def run(self) -> None:
        from vlnbench.data.check import check_data

        failed = 0
        for item in check_data(self.data_root, self.benchmark, self.split):
            print(item, flush=True)
            failed += not item.ok
        if failed:
            raise UsageError(f"{failed} checks of the data below {self.data_root} failed")


@dataclass(frozen=True)
class Preview:
    """Draw a house of the houses benchmark: plans, paths, instructions, and what the camera sees."""

    out: Path
    """PNG file to write."""
    house: str | None = None
    """Name of a house of the split; default the first."""
    split: str = "val_unseen"
    """Split whose episodes are drawn."""
    episodes: int = 4
    """How many episodes are drawn."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""

    def run(self) -> None:
        from vlnbench.data.generate import preview_house

        print(preview_house(self.data_root, self.out, self.split, self.house, self.episodes))


@dataclass(frozen=True)
class Questions:
    """Make a set of questions about images of the train houses to train on (LLaVA's layout). Resumable."""

    out: Path
    """Folder of the set, e.g. trajectory_data/Questions."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""
    views: int = 12000
    """How many images, spread evenly over the train houses of the generated benchmark."""
    frame_width: int | None = None
    """Width of the pictures in pixels, the height follows; default the benchmark's camera."""
    seed: int = 0
    """Seed of the places and questions."""
    workers: int = 1
    """Processes that look."""

    def run(self) -> None:
        from vlnbench.training.collect.questions import QuestionsRequest, format_made, make_questions

        print(format_made(make_questions(QuestionsRequest(**vars(self))), self.out))


Data = (
    Annotated[Houses, subcommand("houses", prefix_name=False)]
    | Annotated[Check, subcommand("check", prefix_name=False)]
    | Annotated[Preview, subcommand("preview", prefix_name=False)]
    | Annotated[Questions, subcommand("questions", prefix_name=False)]
)
