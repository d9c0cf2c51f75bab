"""What is collected: the options of `vlnbench collect`, `data questions` and `data render`, and checks of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Interval

from vlnbench.defaults import BENCHMARK, DRIVER, ENV
from vlnbench.errors import UsageError
from vlnbench.rollout.agent_options import AgentOptions, set_options
from vlnbench.util.bounds import BelowOne, Count, Natural, NotNegative, Positive, Processes, Share, check_bounds

MAX_ACTIONS = 498
"""Longer walks are left out, as StreamVLN's generator does: they do not fit its 500 steps."""


@dataclass(frozen=True)
class CollectOptions:
    """What is collected, with which simulator, and where to."""

    out: Path
    """Folder of the set, e.g. trajectory_data/R2R."""
    benchmark: str = BENCHMARK
    """Name from `vlnbench list`, a file .yaml or .py, or an import string package.module:NAME."""
    set: Literal["r2r", "rxr", "envdrop", "noise", "speaker"] = "r2r"
    """Which data: names the trajectories; envdrop, noise and speaker take the splits of these names."""
    split: str | None = None
    """Split; default train, for the sets envdrop, noise and speaker these."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""
    workers: Processes = 1
    """Processes that walk."""
    gpus: tuple[str, ...] = ()
    """With --dagger: GPUs, named as in CUDA_VISIBLE_DEVICES, on each of which one agent drives; --workers are
    spread over them. Default: one agent in the main process; with a small model on the CPU one on each core."""
    frame_width: int | None = None
    """Width of the pictures in pixels, the height follows; default the benchmark's camera."""
    tours: int | None = None
    """Walk only this many, taken from the scenes in turn (with --relabel: drawn, see --seed); episodes that differ
    in their instruction alone share a path."""
    disturbance: BelowOne = 0.0
    """Chance, before every action, of a short random burst from which the follower finds back."""
    sim: str = "auto"
    """Simulator; auto takes habitat-sim where it is installed."""
    env: str = ENV
    """Environment: name from `vlnbench list`, or an import string package.module:Class, called with body, folder
    of scenes, sensors, --sim and --gpu; it must know the way (shortest_path_action)."""
    gpu: int | None = None
    """Device on which habitat-sim renders, -1 for the CPU; default the first visible one, else the CPU."""
    allow_partial: bool = False
    """Collect although the split does not hold the published number of episodes."""
    dagger: bool = False
    """Let a model drive and the expert correct it, and keep the walks that reach the goal with a detour."""
    relabel: Share | None = None
    """With --dagger: DAgger as VLN-CE does it, with this chance that the expert acts, at every step anew, and the
    expert's action as label of every frame. All walks are kept."""
    longest: Annotated[int, Interval(ge=1, le=MAX_ACTIONS)] = MAX_ACTIONS
    """With --relabel: cut walks after so many actions."""
    overrule_stops: bool = False
    """With --relabel: where the model would stop and the expert not, the expert acts from then on."""
    stop_within: NotNegative | None = None
    """With --relabel: the expert stops, and the label is STOP, at every frame so many meters (geodesic) or less
    from the goal; default 0.5 m before it, where a model that drives alone seldom comes."""
    seed: Natural = 0
    """With --relabel: seed of who acts and, with --tours, of which episodes are walked."""
    depth: bool = False
    """Write depth, distances to the goal and instruction tokens too, for agents that see depth."""
    agent: str = DRIVER
    """Who drives: name from `vlnbench list`, or an import string package.module:Class."""
    agent_options: AgentOptions = field(default_factory=AgentOptions)
    """Options of the agent that drives, of its own type."""

    def check(self) -> None:
        """Raise UsageError for the first option that cannot be. Looks at no file."""
        check_bounds(self)
        if self.relabel is not None:
            if not self.dagger:
                raise UsageError("--relabel: nobody drives without --dagger; give it too")
        elif self.longest != MAX_ACTIONS or self.seed or self.overrule_stops or self.stop_within is not None:
            raise UsageError(
                "--longest, --overrule-stops, --stop-within and --seed: for walks with --relabel; leave them out"
            )
        if self.dagger and self.disturbance:
            raise UsageError("--disturbance: with --dagger the model strays by itself; leave one of them out")
        if not self.dagger and (self.agent != DRIVER or set_options(self.agent_options)):
            raise UsageError(
                "--agent and the options of a trained model: nobody drives without --dagger; give it too"
            )
        if self.gpus and not self.dagger:
            raise UsageError("--gpus: nobody drives without --dagger; give it too, or leave --gpus out")
        self.agent_options.check()


@dataclass(frozen=True)
class QuestionsOptions:
    """How many questions about what, and where to."""

    out: Path
    """Folder of the set, e.g. trajectory_data/Questions."""
    benchmark: str = BENCHMARK
    """Generated benchmark of whose train houses the images are: houses-r2r or houses2-r2r."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""
    views: Count = 12000
    """How many images, spread evenly over the train houses of the generated benchmark."""
    frame_width: int | None = None
    """Width of the pictures in pixels, the height follows; default the benchmark's camera."""
    depth: bool = False
    """Write depth too, for agents that see depth."""
    semantic: bool = False
    """Write to what every pixel belongs, too: object, color and room."""
    seed: Natural = 0
    """Seed of the places and questions."""
    workers: Processes = 1
    """Processes that look."""

    def check(self) -> None:
        """Raise UsageError for the first option that cannot be."""
        check_bounds(self)


@dataclass(frozen=True)
class RenderOptions:
    """Which walks are rendered, and with which simulator."""

    folder: Path
    """Folder of the walks (annotations.json), such as trajectory_data/EnvDrop."""
    benchmark: str | None = None
    """Whose episodes were walked: name from `vlnbench list`, or a file; default that of the published set of this
    name."""
    split: str | None = None
    """Split that was walked; default that of the published set of this name."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""
    workers: Processes = 1
    """Processes that render."""
    frame_width: int | None = None
    """Width of the pictures in pixels, the height follows; default the benchmark's camera."""
    within: Positive = 1.0
    """Leave out what ends so far from its episode's goal (meters, geodesic) or farther; published walks end within
    0.5 m."""
    sim: str = "auto"
    """Simulator; auto takes habitat-sim where it is installed."""
    env: str = ENV
    """Environment: name from `vlnbench list`, or an import string package.module:Class."""
    gpu: int | None = None
    """Device on which habitat-sim renders, -1 for the CPU; default the first visible one, else the CPU."""
    dry_run: bool = False
    """Render a few walks, throw them away and say how many GB and hours all take."""

    def check(self) -> None:
        """Raise UsageError for the first option that cannot be."""
        check_bounds(self)
