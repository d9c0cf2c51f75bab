"""The command line: typed options, nothing else. Heavy libraries load only inside a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg, subcommand

from vlnbench.errors import UsageError
from vlnbench.model_options import ModelOptions


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
    gpu: int | None = None
    """Device on which habitat-sim renders, -1 for the CPU; default the first visible one, else the CPU."""
    video: int = 0
    """Write an MP4 of this many episodes (RGB beside the map) into the run folder."""
    allow_partial: bool = False
    """Run although the split does not hold the published number of episodes; the run's identity says so."""
    model: OmitArgPrefixes[ModelOptions] = field(default_factory=ModelOptions)
    """Trained model."""

    def run(self) -> None:
        from vlnbench.commands import EvalRequest, run_eval

        run_eval(EvalRequest(**vars(self)))


@dataclass(frozen=True)
class Houses:
    """Generate houses-r2r: scenes, navmeshes and episodes, the same bytes for the same options."""

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

        options = {key: value for key, value in vars(self).items() if key != "data_root"}
        print(generate_houses(self.data_root, import_string("envs.houses:HousesConfig")(**options)))


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
        from vlnbench.data_check import check_data

        failed = 0
        for item in check_data(self.data_root, self.benchmark, self.split):
            print(item, flush=True)
            failed += not item.ok
        if failed:
            raise UsageError(f"{failed} checks of the data below {self.data_root} failed")


Data = (
    Annotated[Houses, subcommand("houses", prefix_name=False)]
    | Annotated[Check, subcommand("check", prefix_name=False)]
)


@dataclass(frozen=True)
class List:
    """List agents and benchmarks."""

    def run(self) -> None:
        from vlnbench.commands import list_names

        print(list_names())


@dataclass(frozen=True)
class Collect:
    """Walk the reference paths of a split and write trajectories to train on (StreamVLN's layout). Resumable."""

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
    sim: Literal["auto", "embedded", "habitat-sim"] = "auto"
    """Simulator; auto takes habitat-sim where it is installed."""
    gpu: int | None = None
    """Device on which habitat-sim renders, -1 for the CPU; default the first visible one, else the CPU."""
    allow_partial: bool = False
    """Collect although the split does not hold the published number of episodes."""

    def run(self) -> None:
        from vlnbench.training.collect import CollectRequest, collect, format_collected

        print(format_collected(collect(CollectRequest(**vars(self))), self.out))


@dataclass(frozen=True)
class PlanMemory:
    """Plan the GPU memory of a training setting, without a GPU: what needs it, whether it fits, what would fit."""

    model: str = "streamvln-8b"
    """streamvln-8b, or the folder of a checkpoint (only its config.json is read)."""
    gpus: str = "1x80GB"
    """How many of what size: 8x80GB. GB is the size a card is sold as, GiB what PyTorch reports as its total."""
    tunable_parts: str = "mm_vision_tower,mm_mlp_adapter,mm_language_model"
    """Parts that are trained, separated by commas."""
    lora_rank: int = 0
    """Train low-rank adapters of this rank on the language model's linear layers; 0: none."""
    zero: int = 2
    """DeepSpeed ZeRO stage, 0 to 3."""
    batch: int = 2
    """Windows per GPU and forward pass."""
    accumulation: int = 2
    """Forward passes per optimiser step."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass."""
    offload_optimizer: bool = False
    """Keep optimiser states in host memory (ZeRO 1 to 3)."""
    offload_parameters: bool = False
    """Keep parameters in host memory (ZeRO 3)."""
    optimizer: Literal["adamw", "adafactor", "adamw8bit"] = "adamw"
    """Optimiser."""
    frames: int = 32
    """Steps per window."""
    history: int = 8
    """Memory frames per window."""
    future_steps: int = 4
    """Actions per turn."""
    image_size: int | None = None
    """Width and height of images in pixels; default the checkpoint's."""
    text_tokens: int = 450
    """Tokens of a window that are not images; long RxR instructions make it about 750."""
    dtype: Literal["bf16", "fp32"] = "bf16"
    """Precision of weights and gradients."""
    attn: Literal["sdpa", "flash_attention_2", "eager"] = "sdpa"
    """Attention of the language model; the first two need the same memory."""
    json: bool = False
    """Print JSON, without suggestions."""

    def run(self) -> None:
        import json

        from vlnbench.training.plan import PlanRequest, plan
        from vlnbench.training.plan_report import format_plan
        from vlnbench.training.plan_search import suggest

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
        from vlnbench.rescore import format_rescored, rescore

        print(format_rescored(rescore(self.run_folder, self.data_root, write=self.write), self.write))


@dataclass(frozen=True)
class Rank:
    """Show finished runs of one protocol, data version, split and simulator in one table, best SR first."""

    run_folders: Positional[Annotated[list[Path], arg(name="runs")]]
    """Run folders."""

    def run(self) -> None:
        from vlnbench.ranking import format_ranking, rank

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
        from vlnbench.export import export

        options = {"allow_partial": self.allow_partial, "force": self.force}
        count = export(self.run_folder, self.out, self.format, self.data_root, **options)
        print(f"{count} episodes as {self.format}: {self.out}")


@dataclass(frozen=True)
class Doctor:
    """Check this machine: packages, simulator, GPUs, caches, disk and data."""

    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""

    def run(self) -> None:
        from vlnbench.doctor import report

        report(self.data_root)


Command = (
    Annotated[Eval, subcommand("eval", prefix_name=False)]
    | Annotated[Data, subcommand("data", prefix_name=False, description="Generate or check data.")]
    | Annotated[Collect, subcommand("collect", prefix_name=False)]
    | Annotated[PlanMemory, subcommand("plan", prefix_name=False)]
    | Annotated[List, subcommand("list", prefix_name=False)]
    | Annotated[Rescore, subcommand("rescore", prefix_name=False)]
    | Annotated[Rank, subcommand("rank", prefix_name=False)]
    | Annotated[Export, subcommand("export", prefix_name=False)]
    | Annotated[Doctor, subcommand("doctor", prefix_name=False)]
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
