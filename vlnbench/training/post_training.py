"""Options of training by rewards (`--objective grpo`), each defined once. Loads nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from vlnbench.errors import UsageError
from vlnbench.util.loading import DEFAULT_ENV

GRPO = "grpo"

Aggregation = Literal["grpo", "dr_grpo", "bnpo", "dapo"]
Scaling = Literal["group", "batch", "none"]


@dataclass(frozen=True, kw_only=True)
class PostTraining:
    """How a network acts by chance, what that is worth, and what is learned from it."""

    rollouts: Literal["steps", "episodes"] | None = None
    """With --objective grpo: steps are answers to windows of the collected --sets, without a simulator; episodes
    are walks in simulators."""
    rewards: tuple[str, ...] = ()
    """Names of rewards or import strings package.module:function, each as NAME or NAME:WEIGHT, added up; default
    match-decayed for steps, success-near for episodes."""
    temperature: float = 1.0
    """Of the network's chances when it acts."""
    top_p: float = 1.0
    """The likeliest tokens that together have this chance can be drawn."""
    clip_low: float = 0.2
    """How far the probability of a token may fall in an update, as a share, before it is clipped."""
    clip_high: float = 0.28
    """How far it may rise."""
    aggregation: Aggregation = "dapo"
    """What counts alike in the loss: every answer or walk (grpo), every token of the update (dapo), of a forward
    pass (bnpo), or against the longest that can be (dr_grpo)."""
    reward_scaling: Scaling = "group"
    """By which standard deviation rewards are divided: that of the group, of the whole update, or none."""
    iterations: int = 1
    """Optimizer steps on the same rollouts."""
    even_groups: Literal["keep", "skip", "resample"] = "skip"
    """Groups whose rewards are all the same: keep counts them in the means, skip does not, resample takes other
    prompts instead."""
    resamples: int = 2
    """With --even-groups resample: how often, at most, in an update."""
    answer_tokens: int = 24
    """Tokens of one answer, at most."""
    step_cap: int = 500
    """Actions of a walk, at most."""
    turn_cap: int | None = None
    """Answers of a walk, at most."""
    stop_beyond: float | None = None
    """Walks end after this many times as many actions as the reference has."""
    expert_prefix: float = 0.0
    """Walks begin where the expert is after this share of its actions; the share falls evenly to 0."""
    prefix_updates: int | None = None
    """Updates until walks begin at the start; default half of them."""
    benchmark: str = "houses-r2r"
    """With --rollouts episodes: name from `vlnbench list`."""
    split: str = "train"
    """Split whose episodes are walked."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""
    allow_partial: bool = False
    """Train although the split does not hold the published number of episodes."""
    envs: int = 2
    """Simulators per GPU, each in a process."""
    sim: Literal["auto", "embedded", "habitat-sim"] = "auto"
    """Simulator; auto takes habitat-sim where it is installed."""
    env: str = DEFAULT_ENV
    """Environment: import string package.module:Class."""

    @property
    def given(self) -> list[str]:
        """The options here that differ from their defaults."""
        return [each.name for each in fields(PostTraining) if getattr(self, each.name) != each.default]

    @property
    def most_actions(self) -> str:
        """How long walks can be, for people."""
        beyond = f" and {self.stop_beyond:g} x the reference" if self.stop_beyond else ""
        return f"{self.step_cap} actions{beyond}"

    def check_post_training(self) -> None:
        """Raise UsageError for the first option of these that cannot be. Looks at no file."""
        if self.rollouts is None:
            raise UsageError("--rollouts: --objective grpo needs it: steps or episodes")
        if not 0 < self.temperature < math.inf:
            raise UsageError(
                f"--temperature {self.temperature:g}: at 0 all answers of a group are the same and nothing is "
                "learned; expected a number above 0"
            )
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {self.top_p:g}: expected a chance above 0, up to 1")
        for name in ("clip_low", "clip_high"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{_flag(name)} {getattr(self, name):g}: expected a number above 0")
        if not self.clip_low < 1:
            raise UsageError(f"--clip-low {self.clip_low:g}: expected less than 1, for no probability is below 0")
        least = {"iterations": 1, "resamples": 1, "answer_tokens": 1, "step_cap": 1, "turn_cap": 1, "envs": 1}
        for name, minimum in {**least, "prefix_updates": 1}.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise UsageError(f"{_flag(name)} {value}: expected at least {minimum}")
        if self.stop_beyond is not None and not 0 < self.stop_beyond < math.inf:
            raise UsageError(f"--stop-beyond {self.stop_beyond:g}: expected a number above 0")
        if not 0 <= self.expert_prefix < 1:
            raise UsageError(f"--expert-prefix {self.expert_prefix:g}: expected a share from 0 to below 1")
        self._check_kind()

    def _check_kind(self) -> None:
        """Options of one kind of rollouts are not given for the other."""
        if self.rollouts == "steps":
            defaults = {each.name: each.default for each in fields(PostTraining)}
            walked = ("step_cap", "turn_cap", "stop_beyond", "expert_prefix", "prefix_updates", "benchmark")
            for name in (*walked, "split", "data_root", "allow_partial", "envs", "sim", "env"):
                if getattr(self, name) != defaults[name]:
                    raise UsageError(f"{_flag(name)}: for --rollouts episodes; leave it out")
        if self.prefix_updates is not None and not self.expert_prefix:
            raise UsageError("--prefix-updates: for walks with --expert-prefix; leave it out")

    def refuse_post_training(self) -> None:
        """Raise UsageError for options of rewards where none are asked for."""
        if self.given:
            flags = ", ".join(map(_flag, self.given))
            raise UsageError(f"{flags}: for --objective grpo; give it too, or leave them out")


def changed_since(values: dict[str, Any]) -> dict[str, Any]:
    """Of all options of a training by name, those that are not of post-training or not at their defaults."""
    defaults = {each.name: each.default for each in fields(PostTraining)}
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
