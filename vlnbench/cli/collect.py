"""The command `vlnbench collect`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tyro.conf import OmitArgPrefixes

from vlnbench.rollout.model_options import ModelOptions


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
