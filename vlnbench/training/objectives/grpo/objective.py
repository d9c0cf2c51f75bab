"""GRPO as an objective: in turns, the network acts by chance and learns from what that was worth."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlnbench.errors import UsageError
from vlnbench.training.data import Schedule
from vlnbench.training.family.policy import GivesLogProbabilities, Policy, Sampling
from vlnbench.training.family.trains import Trains
from vlnbench.training.objectives.grpo.episodes import Episodes
from vlnbench.training.objectives.grpo.groups import Grouping
from vlnbench.training.objectives.grpo.kept import Keeper
from vlnbench.training.objectives.grpo.learner import Learner
from vlnbench.training.objectives.grpo.options import GRPOOptions
from vlnbench.training.objectives.grpo.reference import Reference, make_reference
from vlnbench.training.objectives.grpo.rollouts import Rollouts
from vlnbench.training.objectives.grpo.steps import Steps
from vlnbench.training.objectives.grpo.tally import Tally
from vlnbench.training.objectives.protocol import Begun
from vlnbench.training.run.log import Phases
from vlnbench.training.setup import Process
from vlnbench.util.progress import say

ROLLOUT = "rollout"
"""The phase in which the network acts; all else of a step is the update."""


class GRPO:
    """An `Objective`. `--iterations` optimizer steps share the rollouts made before the first of them."""

    def __init__(self, options: GRPOOptions, trains: Trains, process: Process) -> None:
        """Read what rollouts need, and try the rewards. Raises UsageError where rewards cannot be learned from."""
        if options.feature_cache is not None:
            raise UsageError("--feature-cache: for --objective supervised; leave it out")
        self._options, self._trains, self._process = options, trains, process
        made = Steps if options.rollouts == "steps" else Episodes
        self._rollouts: Rollouts = made(options, trains)
        self._tally = Tally(process)
        self._grouping = Grouping(options, self._rollouts, process, self._tally)
        self._check_prompts(self._rollouts.prompts)
        per_step = options.completions(process.world_size)
        epoch = self._rollouts.prompts * self._grouping.size
        steps = options.steps or max(1, int(options.epochs * epoch / per_step)) * options.iterations
        self.schedule = Schedule(steps, per_step, epoch)
        self._sampling = Sampling(options.temperature, options.top_p, options.answer_tokens, options.turn_cap)

    def _check_prompts(self, prompts: int) -> None:
        if self._grouping.count > prompts:
            raise UsageError(
                f"--batch, --accumulation and --group ask for {self._grouping.count} prompts in an update, and "
                f"there are {prompts}; lower --batch or --accumulation"
            )

    def manifest(self) -> Mapping[str, Any]:
        return {**self._rollouts.manifest(), "units": self._units(), "schedule": asdict(self.schedule)}

    def _units(self) -> dict[str, int]:
        """How much an update takes, each in its own unit, for these are easily mistaken for one another."""
        options = self._options
        return {
            "completions_per_gpu": options.completions(1),
            "prompts_per_update": self._grouping.count,
            "group": self._grouping.size,
            "windows_per_forward_pass": options.batch,
            "optimizer_steps_per_update": options.iterations,
        }

    def describe(self) -> str:
        options, units = self._options, self._units()
        what = "answers to each of" if options.rollouts == "steps" else "walks in each of"
        nucleus = f", of the likeliest {options.top_p:g} (learned as drawn among all)" if options.top_p < 1 else ""
        rewards = " + ".join(f"{part.weight:g} x {part.name}" for part in self._rollouts.rewards.parts)
        return (
            f"{self._rollouts.describe()}\n\n{self.schedule.steps} optimizer steps, {options.iterations} per "
            f"update: {units['group']} {what} {units['prompts_per_update']} prompts, at temperature "
            f"{options.temperature:g}{nucleus}; reward: {rewards}"
        )

    def counts(self) -> Mapping[str, Any]:
        return {**self._rollouts.counts(), **self._units()}

    def texts(self) -> Iterator[str]:
        yield from self._rollouts.texts()

    def prepare(self, model: nn.Module, base: Path, phases: Phases) -> None:
        self._base, self._phases = base, phases
        phases.also(ROLLOUT)
        phases.watch(model, self._trains.stretches(model, cached=False))
        self._reference: Reference | None = make_reference(model, self._options, self._process)

    def begin(self, begun: Begun) -> None:
        options, trains = self._options, self._trains
        assert isinstance(trains, GivesLogProbabilities)
        self._engine, self._memory = begun.engine, begun.memory
        self._policy: Policy = trains.policy(begun.engine.module, self._base, options, self._sampling)
        with self._acting():
            self._policy.renew()
        self._rollouts.begin(self._policy, partial(self._phases.goes_on, ROLLOUT))
        self._check_prompts(self._rollouts.prompts)
        if self._process.first:
            done = begun.done // options.iterations
            self._grouping.keeper = Keeper(options.out, options.rollouts_gb, done)
        self._learner = Learner(options, trains, self._process, self._tally, self._reference)

    def losses(self, step: int) -> Iterator[Tensor]:
        update, inner = divmod(step - 1, self._options.iterations)
        if inner == 0:
            dull = self._grouping.dull
            began = time.perf_counter()
            with self._phases.timed(ROLLOUT), self._memory.phase(ROLLOUT), self._acting():
                self._policy.renew()
                found = self._grouping.make(update + 1)
            self._tally.add("rollout_s", time.perf_counter() - began)
            self._learner.take(found, self._rollouts.longest)
            if self._grouping.dull > dull == 0 and self._process.first:
                say(
                    f"warning: update {update + 1}: in every group all rewards are the same, so nothing is "
                    "learned from it; no further warning (no_spread in the log is the share of such groups)"
                )
        began = time.perf_counter()
        yield from self._learner.losses(self._engine)
        self._tally.add("update_s", time.perf_counter() - began)

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """The network whole and without dropout; afterwards as it was."""
        model = self._engine.module
        whole: Any = nullcontext()
        if self._options.zero == 3:
            import deepspeed

            whole = deepspeed.zero.GatheredParameters(list(model.parameters()))
        training = model.training
        with whole, torch.random.fork_rng(devices=[]):
            try:
                yield
            finally:
                model.train(training)

    def notes(self) -> Mapping[str, Any]:
        phases: list[Any] = [self._memory.phases]
        if self._process.world_size > 1:
            phases = [None] * self._process.world_size
            torch.distributed.all_gather_object(phases, self._memory.phases)
        return {"grpo": self._tally.take(), "memory_rollout": [each.get(ROLLOUT) for each in phases]}

    def summary(self) -> str:
        self._rollouts.close()
        updates = self.schedule.steps // self._options.iterations
        if not self._grouping.dull:
            return ""
        return f"{self._grouping.dull} of up to {updates} updates taught nothing: in no group did rewards differ"
