"""What one evaluation is asked to do: the options of `vlnbench eval`, and checks of them that need no file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt, Interval

from vlnbench.defaults import AGENT, BENCHMARK, ENV
from vlnbench.errors import UsageError
from vlnbench.evaluation.choice.choice import Choice
from vlnbench.evaluation.choice.told import Told
from vlnbench.evaluation.until.rule import Rule, parse_until
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.util.bounds import Natural, Processes, check_bounds
from vlnbench.util.trackers import parse_trackers


@dataclass(frozen=True)
class EvalOptions:
    """One evaluation: which agent, on which episodes, and how it is carried out."""

    agent: str = AGENT
    """Name from `vlnbench list`, an import string package.module:Class, or remote://HOST:PORT."""
    benchmark: str = BENCHMARK
    """Name from `vlnbench list`, a file .yaml or .py, or an import string package.module:NAME."""
    as_published: bool = False
    """Where the agent was trained with another body (camera, height, turns), change that of the benchmark, which
    then is another one, such as r2r-ce@512x512-hfov90; default: refuse the agent."""
    split: str = "val_unseen"
    """Split of the benchmark."""
    episodes: int | None = None
    """Run only this many episodes of the split, or of the chosen ones (always the same ones, drawn by a hash of
    their ids); default all."""
    episode_ids: tuple[str, ...] = ()
    """Run only the episodes with these ids. This choice and the three that follow are part of the run's identity
    and stand in every table."""
    scenes: tuple[str, ...] = ()
    """Run only episodes in these scenes: ids, or names of their files without the ending."""
    languages: tuple[str, ...] = ()
    """Run only episodes in these languages, such as en-US or te."""
    where: str = ""
    """Run only episodes that meet these conditions on length (m), turns and words: "length<8, turns>=2"."""
    until: str = ""
    """Stop when this is known: "SR ± 2" (or +-: the interval of SR over all planned episodes is that narrow, in
    points) or "SR vs RUN" (the difference to that run, finished or going on, paired by episode, is not 0).
    Episodes then come in random order; the run is labeled PARTIAL, and goes on where it is given again without."""
    told: Told = "own"
    """What every episode's agent is told: its own instruction, or that of an episode in another scene, which tells
    how far it follows what it is told."""
    seed: int = 0
    """Seed of the run; every episode derives its own from it."""
    repeats: Annotated[int, Interval(ge=1, le=1000)] = 1
    """Run every episode this many times, for agents that sample."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""
    out: Path | None = None
    """Run folder; default runs/<benchmark>/<split>/<agent>-<identity>."""
    sim: str = "auto"
    """Simulator; auto takes habitat-sim where it is installed."""
    env: str = ENV
    """Environment: name from `vlnbench list`, or an import string package.module:Class, called with body, folder
    of scenes, sensors and --sim."""
    video: Natural = 0
    """Write an MP4 of this many episodes (RGB beside the map) into the run folder."""
    allow_partial: bool = False
    """Run although the split does not hold the published number of episodes; the run's identity says so."""
    envs: Processes | None = None
    """Simulators of an agent, each in a process of its own; default as many as keep an agent busy that is timed
    when it is loaded, on a GPU one and a half times --max-batch if cores and memory allow, otherwise one per CPU
    core, at most 4. On a CPU results do not depend on it, nor on the three options that follow; on a GPU close
    choices in half precision may (--max-batch 1 has episodes alone)."""
    agents: Processes | None = None
    """Agents in processes of their own, with --envs simulators each, fed from one queue; default one per GPU of
    --gpus or of the Ray cluster, on the CPU without --envs one per core for a small model (8 at
    most), otherwise one agent in the main process."""
    gpus: tuple[str, ...] = ()
    """GPUs, named as in CUDA_VISIBLE_DEVICES, on which agents run and their simulators render."""
    ray: str = ""
    """Run the agents on a Ray cluster at this address: auto, HOST:PORT or ray://HOST:PORT."""
    episode_timeout: Annotated[float, Gt(0)] = 300.0
    """Seconds that simulator or agent may take for one answer. A simulator that hangs costs its episode (timeout)
    and is replaced, and so does one of several agents; an agent alone that hangs ends the program with exit code
    124."""
    max_errors: Annotated[float, Ge(0)] = 0.05
    """Stop with exit code 1 when more episodes than this have failed; below 1, a part of the planned ones."""
    retry_errors: bool = False
    """When resuming, run failed episodes again instead of keeping their rows; an episode's last row counts."""
    debug: bool = False
    """Run one episode in this process without a time limit, so that breakpoint() works, and end with the traceback
    of what the agent raises. Nothing is kept."""
    keep_answers: bool = True
    """Keep what the agent's model says in answers.jsonl of the run folder: prompt sizes, texts, actions,
    log-probabilities and times, 2 kB a step at most. It changes no row."""
    tracker: tuple[str, ...] = ()
    """Trackers that follow the run: tensorboard, trackio, wandb, those of plug-ins, or import strings."""
    agent_options: AgentOptions = field(default_factory=AgentOptions)
    """Options of the agent, of its own type."""

    @cached_property
    def rule(self) -> Rule | None:
        """What `until` says, None where it says nothing. Raises UsageError for what is no rule."""
        return parse_until(self.until)

    def check(self) -> None:
        """Raise UsageError for numbers that make no sense."""
        check_bounds(self)
        self.choice.check()
        _ = self.rule
        self.agent_options.check()
        parse_trackers(self.tracker)
        gpus = self.gpus
        if not all(gpus) or len(set(gpus)) < len(gpus):
            raise UsageError(f"--gpus {','.join(gpus)}: expected names of different GPUs, separated by commas")
        if gpus and self.ray:
            raise UsageError("--gpus: leave it out with --ray, which gives each agent a GPU")
        if gpus and (self.agents or len(gpus)) < len(gpus):
            raise UsageError(f"--agents {self.agents}: expected {len(gpus)} or more, as many as --gpus")
        device = self.agent_options.device_choice
        if device.startswith("cuda:") and (gpus or self.agents or self.ray):
            raise UsageError(f"--device {device}: leave it out; each agent has a GPU of its own")

    @property
    def choice(self) -> Choice:
        """Which episodes of the split are chosen."""
        return Choice(self.episode_ids, self.scenes, self.languages, self.where)

    @property
    def n_agents(self) -> int:
        """Agent processes; 0: the agent acts in this one."""
        return self.agents or len(self.gpus)

    @property
    def most_envs(self) -> int | None:
        """Simulators that one agent has use for: no more than episodes, None if their number is not given."""
        counts = [count for count in (self.episodes, len(self.episode_ids) or None) if count is not None]
        if not counts:
            return None
        return max(1, math.ceil(min(counts) * self.repeats / max(1, self.n_agents)))
