"""The command line: typed options, nothing else. Heavy libraries load only inside a command."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg, subcommand

from vlnbench.cli.data import Questions
from vlnbench.cli.matrix import MATRIX, MatrixCommand
from vlnbench.cli.report import Report
from vlnbench.cli.results import Compare, Leaderboard
from vlnbench.cli.serve import Serve
from vlnbench.cli.status import Status
from vlnbench.data.houses_config import HousesConfig
from vlnbench.errors import GpuMemoryError, RunError, UsageError
from vlnbench.rollout.model_options import ModelOptions
from vlnbench.training.options import PlanOptions, TrainOptions


@dataclass(frozen=True)
class Eval:
    """Evaluate an agent on a split. Running the same command again resumes it."""

    agent: str = "streamvln-tiny"
    """Name from `vlnbench list`, an import string package.module:Class, or remote://HOST:PORT."""
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
    allow_partial: bool = False
    """Run although the split does not hold the published number of episodes; the run's identity says so."""
    envs: int | None = None
    """Simulators of an agent, each in a process of its own; default one per CPU core, at most 4. Results do not
    depend on it, nor on the three options that follow."""
    agents: int | None = None
    """Agents in processes of their own, with --envs simulators each, fed from one queue; default one per GPU of
    --gpus or of the Ray cluster, otherwise one agent in the main process."""
    gpus: str = ""
    """GPUs, separated by commas and named as in CUDA_VISIBLE_DEVICES, on which agents run and their simulators
    render."""
    ray: str = ""
    """Run the agents on a Ray cluster at this address: auto, HOST:PORT or ray://HOST:PORT."""
    episode_timeout: float = 300.0
    """Seconds that simulator or agent may take for one answer. A simulator that hangs costs its episode (timeout)
    and is replaced; an agent that hangs ends the program with exit code 124."""
    max_errors: float = 0.05
    """Stop with exit code 1 when more episodes than this have failed; below 1, a part of the planned ones."""
    retry_errors: bool = False
    """When resuming, run failed episodes again instead of keeping their rows; an episode's last row counts."""
    tracker: str = ""
    """Trackers that follow the run, separated by commas: tensorboard, trackio, wandb, or import strings."""
    model: OmitArgPrefixes[ModelOptions] = field(default_factory=ModelOptions)
    """Trained model."""

    def run(self) -> None:
        from vlnbench.commands import EvalRequest, run_eval

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as after Ctrl-C
        run_eval(EvalRequest(**vars(self)))


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
        from vlnbench.commands import generate_envdrop, generate_houses

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
        from vlnbench.commands import preview_house

        print(preview_house(self.data_root, self.out, self.split, self.house, self.episodes))


Data = (
    Annotated[Houses, subcommand("houses", prefix_name=False)]
    | Annotated[Check, subcommand("check", prefix_name=False)]
    | Annotated[Preview, subcommand("preview", prefix_name=False)]
    | Annotated[Questions, subcommand("questions", prefix_name=False)]
)


@dataclass(frozen=True)
class List:
    """List agents and benchmarks."""

    def run(self) -> None:
        from vlnbench.commands import list_names

        print(list_names())


@dataclass(frozen=True)
class Collect:
    """Walk the episodes of a split and write trajectories to train on (StreamVLN's layout). Resumable.

    The reference paths are walked; with --dagger a trained model drives and the expert corrects it.
    """

    out: Path
    """Folder of the set, e.g. trajectory_data/R2R."""
    benchmark: str = "houses-r2r"
    """Name from `vlnbench list`."""
    set: Literal["r2r", "rxr", "envdrop"] = "r2r"
    """Which data: names the trajectories; envdrop takes the split envdrop."""
    split: str | None = None
    """Split; default train, for the set envdrop envdrop."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""
    workers: int = 1
    """Processes that walk."""
    frame_width: int | None = None
    """Width of the pictures in pixels, the height follows; default the benchmark's camera."""
    tours: int | None = None
    """Walk only this many (the first ones); episodes that differ in their instruction alone share a tour."""
    disturbance: float = 0.0
    """Chance, before every action, of a short random burst from which the follower finds back."""
    sim: Literal["auto", "embedded", "habitat-sim"] = "auto"
    """Simulator; auto takes habitat-sim where it is installed."""
    gpu: int | None = None
    """Device on which habitat-sim renders, -1 for the CPU; default the first visible one, else the CPU."""
    allow_partial: bool = False
    """Collect although the split does not hold the published number of episodes."""
    dagger: bool = False
    """Let a model drive and the expert correct it, and keep the walks that reach the goal with a detour."""
    agent: str = "streamvln"
    """Who drives: name from `vlnbench list`, or an import string package.module:Class."""
    model: OmitArgPrefixes[ModelOptions] = field(default_factory=ModelOptions)
    """Trained model, for --dagger."""

    def run(self) -> None:
        from vlnbench.training.collect.collect import CollectRequest, collect, format_collected

        print(format_collected(collect(CollectRequest(**vars(self))), self.out))


@dataclass(frozen=True, kw_only=True)
class Train(TrainOptions):
    """Train parts of a model on collected trajectories, with DeepSpeed. Running the same command resumes it.

    Several GPUs: torchrun --nproc-per-node 8 -m vlnbench train ..., or deepspeed --module vlnbench train ...
    """

    def run(self) -> None:
        from vlnbench.training.trainer import train

        trained = train(self)
        print(f"checkpoint: {trained.model}")


@dataclass(frozen=True, kw_only=True)
class PlanMemory(PlanOptions):
    """Plan the GPU memory of a training setting, without a GPU: what needs it, whether it fits, what would fit."""

    json: bool = False
    """Print JSON, without suggestions."""

    def run(self) -> None:
        import json

        from vlnbench.training.memory.plan import PlanRequest, plan
        from vlnbench.training.memory.report import format_plan
        from vlnbench.training.memory.search import suggest

        options = {name: value for name, value in vars(self).items() if name != "json"}
        planned = plan(PlanRequest(**options))
        if self.json:
            print(json.dumps(planned.to_json(), indent=2))
        else:
            print(format_plan(planned, [] if planned.fits == "yes" else suggest(planned)))


@dataclass(frozen=True)
class Rescore:
    """Score the recorded trajectories of a run again, without a simulator."""

    run_folder: Positional[Path]
    """Run folder."""
    data_root: Path = Path("data")
    """Folder that holds the dataset of the run."""
    write: bool = False
    """Replace rows and summary; a copy of changed rows stays in episodes.jsonl.before-rescore."""

    def run(self) -> None:
        from vlnbench.evaluation.rescore import format_rescored, rescore

        print(format_rescored(rescore(self.run_folder, self.data_root, write=self.write), self.write))


@dataclass(frozen=True)
class Rank:
    """Show finished runs of one protocol, data version, split and simulator in one table, best SR first."""

    run_folders: Positional[Annotated[list[Path], arg(name="runs")]]
    """Run folders."""

    def run(self) -> None:
        from vlnbench.leaderboard.ranking import format_ranking, rank

        if not self.run_folders:
            raise UsageError("rank: expected at least one run folder")
        print(format_ranking(rank(self.run_folders)))


@dataclass(frozen=True)
class Export:
    """Write a run in the submission format of a leaderboard."""

    run_folder: Positional[Path]
    """Run folder."""
    format: Literal["evalai-r2r", "rxr"]
    """R2R-CE (EvalAI) or RxR-Habitat."""
    out: Path
    """File to write."""
    data_root: Path = Path("data")
    """Folder that holds the dataset of the run; only rxr looks at it."""
    allow_partial: bool = False
    """Export a run that does not cover its split."""
    force: bool = False
    """Overwrite the file."""

    def run(self) -> None:
        from vlnbench.evaluation.export import export

        options = {"allow_partial": self.allow_partial, "force": self.force}
        count = export(self.run_folder, self.out, self.format, self.data_root, **options)
        print(f"{count} episodes as {self.format}: {self.out}")


@dataclass(frozen=True)
class Doctor:
    """Check this machine: packages, simulator, GPUs, caches, disk and data."""

    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""

    def run(self) -> None:
        from vlnbench.cli.doctor import report

        report(self.data_root)


Command = (
    Annotated[Eval, subcommand("eval", prefix_name=False)]
    | Annotated[Serve, subcommand("serve", prefix_name=False)]
    | Annotated[Data, subcommand("data", prefix_name=False, description="Generate, check or draw data.")]
    | Annotated[Collect, subcommand("collect", prefix_name=False)]
    | Annotated[Train, subcommand("train", prefix_name=False)]
    | Annotated[PlanMemory, subcommand("plan", prefix_name=False)]
    | Annotated[MatrixCommand, subcommand("matrix", prefix_name=False, description=MATRIX)]
    | Annotated[List, subcommand("list", prefix_name=False)]
    | Annotated[Status, subcommand("status", prefix_name=False)]
    | Annotated[Rescore, subcommand("rescore", prefix_name=False)]
    | Annotated[Rank, subcommand("rank", prefix_name=False)]
    | Annotated[Compare, subcommand("compare", prefix_name=False)]
    | Annotated[Leaderboard, subcommand("leaderboard", prefix_name=False)]
    | Annotated[Report, subcommand("report", prefix_name=False)]
    | Annotated[Export, subcommand("export", prefix_name=False)]
    | Annotated[Doctor, subcommand("doctor", prefix_name=False)]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code: 0 done, 1 stopped, 2 user mistake, 3 out of memory, 130 interrupted."""
    if "LOCAL_RANK" in os.environ:  # the deepspeed launcher says it twice
        given = sys.argv[1:] if arguments is None else arguments
        arguments = [argument for argument in given if not argument.startswith("--local_rank=")]
    description = "Benchmark and evaluation harness for vision-and-language navigation agents."
    try:
        command = tyro.cli(Command, prog="vlnbench", description=description, args=arguments)
        command.run()
        sys.stdout.flush()
    except UsageError as error:
        print(f"vlnbench: error: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"vlnbench: stopped: {error}", file=sys.stderr)
        return 1
    except GpuMemoryError as error:
        print(f"vlnbench: {error}", file=sys.stderr)
        return 3
    except BrokenPipeError:  # whoever read the output, `head` say, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere, at exit too
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print("vlnbench: interrupted; run the same command again to resume", file=sys.stderr)
        return 130
    return 0
