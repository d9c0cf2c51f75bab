"""What one evaluation is asked to do, and checks of it that need no file."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path

from vlnbench.errors import UsageError
from vlnbench.rollout.model_options import ModelOptions
from vlnbench.util.trackers import parse_trackers

_MAX_DEFAULT_ENVS = 4
"""More simulators than this seldom pay: each takes memory, and the agent is the slower part."""


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """One evaluation as the user asked for it; see the fields of the same names in `vlnbench.cli.Eval`."""

    agent: str
    benchmark: str
    split: str
    episodes: int | None
    seed: int
    repeats: int
    data_root: Path
    out: Path | None
    sim: str
    video: int
    allow_partial: bool = False
    envs: int | None = None
    agents: int | None = None
    gpus: str = ""
    ray: str = ""
    episode_timeout: float = 300.0
    max_errors: float = 0.05
    retry_errors: bool = False
    tracker: str = ""
    model: ModelOptions = field(default_factory=ModelOptions)

    def check(self) -> None:
        """Raise UsageError for numbers that make no sense."""
        minima = {"video": 0, "max_errors": 0, "envs": 1, "agents": 1}
        for name, least in minima.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise UsageError(f"--{name.replace('_', '-')} {value}: expected {least} or more")
        if not self.episode_timeout > 0:
            raise UsageError(f"--episode-timeout {self.episode_timeout:g}: expected more than 0 seconds")
        if self.model.max_batch < 1:
            raise UsageError(f"--max-batch {self.model.max_batch}: expected 1 or more")
        parse_trackers(self.tracker)
        gpus = self.gpu_names
        if not all(gpus) or len(set(gpus)) < len(gpus):
            raise UsageError(f"--gpus {self.gpus}: expected names of different GPUs, separated by commas")
        if gpus and self.ray:
            raise UsageError("--gpus: leave it out with --ray, which gives each agent a GPU")
        if gpus and (self.agents or len(gpus)) < len(gpus):
            raise UsageError(f"--agents {self.agents}: expected {len(gpus)} or more, as many as --gpus")
        if self.model.device.startswith("cuda:") and (gpus or self.agents or self.ray):
            raise UsageError(f"--device {self.model.device}: leave it out; each agent has a GPU of its own")

    @property
    def gpu_names(self) -> list[str]:
        """The devices of agents, one each."""
        return [name.strip() for name in self.gpus.split(",")] if self.gpus else []

    @property
    def n_agents(self) -> int:
        """Agent processes; 0: the agent acts in this one."""
        return self.agents or len(self.gpu_names)

    @property
    def n_envs(self) -> int:
        """Simulator processes of one agent: no more than episodes, if their number is given."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        agents = max(1, self.n_agents)
        count = self.envs or max(1, min(_MAX_DEFAULT_ENVS, cores // agents))
        if self.episodes is None:
            return count
        return max(1, min(count, math.ceil(self.episodes * self.repeats / agents)))
