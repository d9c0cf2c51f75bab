"""The command line: typed options, nothing else. Heavy libraries load only inside a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, subcommand

from vlnbench.errors import UsageError


@dataclass(frozen=True)
class Eval:
    """Evaluate an agent on a split. Running the same command again resumes it."""

    agent: str = "shortest-path"
    """Name from `vlnbench list`, or an import string package.module:Class."""
    benchmark: str = "houses-r2r"
    """Name from `vlnbench list`."""
    split: str = "val_unseen"
    """Split of the benchmark."""
    episodes: int | None = None
    """Run only this many episodes of the split (always the same ones); default all."""
    seed: int = 0
    """Seed of the run; every episode derives its own from it."""
    repeats: int = 1
    """Run every episode this many times, for agents that sample."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""
    out: Path | None = None
    """Run folder; default runs/<benchmark>/<split>/<agent>-<identity>."""
    sim: Literal["auto", "embedded", "habitat-sim"] = "auto"
    """Simulator; auto takes habitat-sim where it is installed."""
    video: int = 0
    """Write an MP4 of this many episodes (RGB beside the map) into the run folder."""

    def run(self) -> None:
        from vlnbench.commands import EvalRequest, run_eval

        run_eval(EvalRequest(**vars(self)))


@dataclass(frozen=True)
class Data:
    """Generate a benchmark's data: scenes, navmeshes and episodes, the same bytes for the same options."""

    name: Positional[Literal["houses"]]
    """What to generate."""
    data_root: Path = Path("data")
    """Folder below which datasets/ and scene_datasets/ are written."""
    seed: int = 0
    """Seed of the whole benchmark."""
    train_houses: int = 12
    """Houses for train and val_seen."""
    val_unseen_houses: int = 5
    """Houses for val_unseen only."""
    train_episodes: int = 600
    """Episodes of train; up to three share a trajectory."""
    val_seen_episodes: int = 100
    """Episodes of val_seen."""
    val_unseen_episodes: int = 100
    """Episodes of val_unseen."""

    def run(self) -> None:
        from vlnbench.commands import generate_houses
        from vlnbench.loading import import_string

        options = {key: value for key, value in vars(self).items() if key not in ("name", "data_root")}
        print(generate_houses(self.data_root, import_string("envs.houses:HousesConfig")(**options)))


@dataclass(frozen=True)
class List:
    """List agents and benchmarks."""

    def run(self) -> None:
        from vlnbench.commands import list_names

        print(list_names())


Command = (
    Annotated[Eval, subcommand("eval", prefix_name=False)]
    | Annotated[Data, subcommand("data", prefix_name=False)]
    | Annotated[List, subcommand("list", prefix_name=False)]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code: 0 done, 2 user mistake, 130 interrupted."""
    description = "Benchmark and evaluation harness for vision-and-language navigation agents."
    command = tyro.cli(Command, prog="vlnbench", description=description, args=arguments)
    try:
        command.run()
    except UsageError as error:
        print(f"vlnbench: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("vlnbench: interrupted; run the same command again to resume", file=sys.stderr)
        return 130
    return 0
