"""The command `vlnbench eval`."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tyro.conf import OmitArgPrefixes

from vlnbench.rollout.model_options import ModelOptions


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
        from vlnbench.evaluation.options import EvalRequest
        from vlnbench.evaluation.session import run_eval

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as after Ctrl-C
        run_eval(EvalRequest(**vars(self)))
