"""Options of training by rewards (`--objective grpo`), each defined once. Loads nothing heavy.

They are mixed into a family's options: what they know of these (`batch`, say) is any family's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Ge, Interval

from vlnbench.defaults import BENCHMARK, ENV
from vlnbench.errors import UsageError
from vlnbench.training.options import LearnsFrom, flag
from vlnbench.util.bounds import BelowOne, Count, NotNegative, Positive, Processes

if TYPE_CHECKING:
    from vlnbench.training.options import StepOptions as _Step
    from vlnbench.training.options import TrainOptions as _Train
else:  # a family's options come behind, and none of its defaults may be taken back to the common one
    _Step = _Train = object

MOST_OF_A_GROUP = 8
"""Answers or walks of a group, where nothing is said."""

Aggregation = Literal["grpo", "dr_grpo", "bnpo", "dapo"]
Scaling = Literal["group", "batch", "none"]


@dataclass(frozen=True, kw_only=True)
class GRPOPlanning(_Step):
    """What memory depends on."""

    group: Annotated[int, Ge(2)] | None = None
    """Answers to each prompt, or walks from each start; default the largest number up to 8 that parts an update
    evenly. An update takes --batch x --accumulation x GPUs answers or walks, a multiple of this; a forward pass
    has --batch windows of them."""
    beta: NotNegative = 0.0
    """Weight of the divergence from the network at the start, which is kept for it (with --lora-rank and no
    tunable part it is the network without its adapters)."""

    @property
    def learns_from(self) -> LearnsFrom:
        return "walks"

    @property
    def keeps_a_copy(self) -> bool:
        """Whether there is a second network, frozen: not where it is the first without its adapters."""
        return bool(self.beta) and not (self.lora_rank and not self.parts)

    def completions(self, world_size: int) -> int:
        """Answers or walks of an update."""
        return self.batch * self.accumulation * world_size

    def group_size(self, world_size: int) -> int:
        """Answers or walks of a group."""
        if self.group is not None:
            return self.group
        sizes = range(MOST_OF_A_GROUP, 1, -1)
        return next((size for size in sizes if self.completions(world_size) % size == 0), 0)

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        size, completions = self.group_size(world_size), self.completions(world_size)
        if size and completions % size == 0:
            return
        wanted = f"--group {size}" if size else f"a number from 2 to {MOST_OF_A_GROUP}, or --group"
        gpus = f" x {world_size} GPUs" if world_size > 1 else ""
        raise UsageError(
            f"--batch {self.batch} x --accumulation {self.accumulation}{gpus} is {completions} answers or walks "
            f"per update: expected a multiple of {wanted}"
        )


@dataclass(frozen=True, kw_only=True)
class GRPOOptions(GRPOPlanning, _Train):
    """How a network acts by chance, what that is worth, and what is learned from it."""

    EXECUTION: ClassVar[tuple[str, ...]] = ("data_root", "envs", "rollouts_gb")

    rollouts: Literal["steps", "episodes"] | None = None
    """What is judged: steps are answers to windows of the collected --sets, without a simulator; episodes
    are walks in simulators."""
    rewards: tuple[str, ...] = ()
    """Names of rewards or import strings package.module:function, each as NAME or NAME:WEIGHT, added up; default
    match-decayed for steps, success-near for episodes."""
    temperature: Positive = 1.0
    """Of the network's probabilities when it acts; above 0, where all answers of a group would be the same."""
    top_p: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """The likeliest tokens that together have this chance can be drawn. Below 1 what is learned are still the
    log-probabilities among all tokens, as TRL has it: the network is evaluated without leaving tokens out."""
    clip_low: Annotated[float, Interval(gt=0, lt=1)] = 0.2
    """How far the probability of a token may fall in an update, as a share, before it is clipped."""
    clip_high: Positive = 0.28
    """How far it may rise."""
    aggregation: Aggregation = "dapo"
    """What counts alike in the loss: every answer or walk (grpo), every token of the update (dapo), of a forward
    pass (bnpo), or against the longest that can be (dr_grpo)."""
    reward_scaling: Scaling = "group"
    """By which standard deviation rewards are divided: that of the group, of the whole update, or none."""
    iterations: Count = 1
    """Optimizer steps on the same rollouts."""
    even_groups: Literal["keep", "skip", "resample"] = "skip"
    """Groups whose rewards are all the same: keep counts them in the means, skip does not, resample takes other
    prompts instead."""
    resamples: Count = 2
    """With --even-groups resample: how often, at most, in an update."""
    answer_tokens: Count = 24
    """Tokens of one answer, at most."""
    step_cap: Count = 500
    """Actions of a walk, at most."""
    turn_cap: Count | None = None
    """Answers of a walk, at most."""
    stop_beyond: Positive | None = None
    """Walks end after this many times as many actions as the reference has."""
    expert_prefix: BelowOne = 0.0
    """Walks begin where the expert is after this share of its actions; the share falls evenly to 0."""
    prefix_updates: Count | None = None
    """Updates until walks begin at the start; default half of them."""
    rollouts_gb: NotNegative = 1.0
    """Largest size of the run's folder rollouts/ in GB (1e9 bytes), in which every answer or walk is kept with its
    rewards. When it is full, what is in it stays and no more is added; 0: none are kept."""
    benchmark: str = BENCHMARK
    """With --rollouts episodes: name from `vlnbench list`."""
    split: str = "train"
    """Split whose episodes are walked."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""
    allow_partial: bool = False
    """Train although the split does not hold the published number of episodes."""
    envs: Processes = 2
    """Simulators per GPU, each in a process."""
    sim: str = "auto"
    """Simulator; auto takes habitat-sim where it is installed."""
    env: str = ENV
    """Environment: import string package.module:Class."""

    @property
    def learns_from(self) -> LearnsFrom:
        return "answers" if self.rollouts == "steps" else "walks"

    @property
    def most_actions(self) -> str:
        """How long walks can be, for people."""
        beyond = f" and {self.stop_beyond:g} x the reference" if self.stop_beyond else ""
        return f"{self.step_cap} actions{beyond}"

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        if self.rollouts is None:
            raise UsageError("--rollouts: --objective grpo needs it: steps or episodes")
        if self.dtype == "mixed":  # the reference and the walks would be in float32
            raise UsageError("--dtype mixed: not with --objective grpo; leave it out")
        self._check_lengths()
        self._check_kind()

    def _check_lengths(self) -> None:
        if self.save_every % self.iterations:
            raise UsageError(
                f"--save-every {self.save_every}: expected a multiple of --iterations {self.iterations}, for "
                "rollouts are not made again"
            )
        if self.expert_prefix and not self.FOLLOWS:
            raise UsageError(
                "--expert-prefix: these networks go by what they did before and cannot take over from the expert; "
                "leave it out"
            )

    def _check_kind(self) -> None:
        """Options of one kind of rollouts are not given for the other."""
        if self.rollouts == "steps":
            defaults = {each.name: each.default for each in fields(GRPOOptions)}
            walked = ("step_cap", "turn_cap", "stop_beyond", "expert_prefix", "prefix_updates", "benchmark")
            for name in (*walked, "split", "data_root", "allow_partial", "envs", "sim", "env"):
                if getattr(self, name) != defaults[name]:
                    raise UsageError(f"{flag(name)}: for --rollouts episodes; leave it out")
        if self.prefix_updates is not None and not self.expert_prefix:
            raise UsageError("--prefix-updates: for walks with --expert-prefix; leave it out")
