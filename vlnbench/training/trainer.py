"""Training: windows in, a checkpoint out, resumable at any moment."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from vlnbench.errors import GpuMemoryError, RunError, UsageError
from vlnbench.training.arithmetic import keep_products, settle_arithmetic
from vlnbench.training.deepspeed_file import deepspeed_config
from vlnbench.training.family.checkpoints import Checkpoints, Placement, Source
from vlnbench.training.family.find import Chosen, find_family
from vlnbench.training.family.sources import with_weights
from vlnbench.training.family.spec import Trainable
from vlnbench.training.objectives import get_objective, make_objective
from vlnbench.training.objectives.protocol import Begun, Objective, Rehearses
from vlnbench.training.options import TrainOptions, flag, plain
from vlnbench.training.parts import count, format_groups, freeze, groups, merge_adapters
from vlnbench.training.run.folder import (
    BASE,
    COUNTS,
    HANG,
    LOG,
    MODEL,
    OUT_OF_MEMORY,
    STATE,
    THREADS,
    open_run,
    run_manifest,
)
from vlnbench.training.run.log import Phases, taken
from vlnbench.training.run.speed import Speed
from vlnbench.training.run.states import load_state, save_state
from vlnbench.training.setup import (
    Process,
    barrier,
    connected,
    find_process,
    placed,
    settle_threads,
    share_cores,
    start_engine,
)
from vlnbench.training.watch import HangWatch
from vlnbench.util import measure as vram
from vlnbench.util.durable.files import append_line, open_for_append, write_json
from vlnbench.util.gpu_memory import first_line, is_gpu_memory
from vlnbench.util.hub import PREFIX
from vlnbench.util.monitor import spread, training_note
from vlnbench.util.progress import Progress, say
from vlnbench.util.trackers import TrackedRun, Trackers, numbers, parse_trackers


@dataclass(frozen=True)
class Trained:
    """A finished run: where the checkpoint is, optimizer steps, wall-clock seconds of this session, last loss."""

    model: Path
    steps: int
    seconds: float
    loss: float | None


def train(options: TrainOptions, chosen: Chosen | None = None) -> Trained:
    """Train, or go on with the run that `options.out` holds. chosen: what the options name, where that is known.

    Raises UsageError, before any weight is read, for options, files and folders that do not fit.
    """
    process = find_process()
    spec, source = chosen or find_family(options.family, options.checkpoint)
    if not isinstance(options, spec.check_training()):
        raise UsageError(f"--checkpoint {options.checkpoint}: is of the family {spec.name}, the options are not")
    if PREFIX in source.name:  # the run says which commit it is, and goes on with that one
        source, options = with_weights(source), replace(options, checkpoint=source.name)
    options.check(process.world_size)
    parse_trackers(options.tracker)  # a missing package is named before anything is written
    kind = spec.load_trainable()
    unlike = _unlike(kind.checkpoints, source, options)
    options = kind.checkpoints.settled(source, options)
    placement = placed(kind.checkpoints.placement(options, process.device), options, process)
    deepspeed_config(options, placement.dtype)  # a contradicting file is named before anything is read
    started_from = _identify(kind.checkpoints, source, options)
    objective = make_objective(options, kind.trains, process)
    named = [kind.trains.read_set(options.trajectories / name, options) for name in options.vocabulary_of]
    with ExitStack() as stack:
        if process.first:
            described = {"family": spec.name, "objective": options.objective, **objective.manifest()}
            manifest = run_manifest(options, started_from, described, process.world_size, placement)
            stack.enter_context(open_run(options, manifest))
            if unlike:
                say(unlike)
            say(objective.describe())
            for ended in (OUT_OF_MEMORY, HANG):  # of attempts before this one
                (options.out / ended).unlink(missing_ok=True)
        if (options.out / MODEL).exists():
            if process.first:
                say(f"{options.out / MODEL}: this run is complete")
            return Trained(options.out / MODEL, 0, 0.0, None)
        watch = stack.enter_context(HangWatch(process, options.hang_minutes, options.out / HANG))
        speed = stack.enter_context(Speed(process))
        watch.at("connecting to the other processes")
        stack.enter_context(connected(process))
        watch.at("making the checkpoint to start from")
        texts = chain(objective.texts(), *(each.texts() for each in named))
        base = _base(options, kind.checkpoints, source, texts, process)
        barrier(process)
        try:
            run = stack.enter_context(_Run(options, kind, base, process, objective, placement, watch, speed))
            return run.go()
        except (RuntimeError, GpuMemoryError) as error:
            if not is_gpu_memory(error) or process.device.type != "cuda":
                raise
            write_json(options.out / OUT_OF_MEMORY, taken(process.device, process.rank))
            started = Chosen(spec, Source("checkpoint", str(base), base))
            raise GpuMemoryError(_advice(options, started, process, error)) from error


def _advice(options: TrainOptions, chosen: Chosen, process: Process, error: Exception) -> str:
    """What did not fit, how much memory was taken, and what the planner would change."""
    from vlnbench.training.memory.plan import plan
    from vlnbench.training.memory.report import format_plan
    from vlnbench.training.memory.search import suggest

    total = torch.cuda.get_device_properties(process.device).total_memory
    taken = torch.cuda.max_memory_allocated(process.device) / 1e9
    first = f"out of memory on {process.device} after {taken:.1f} GB: {first_line(error)}"
    try:
        kind = get_objective(options.objective).plan_options(chosen.family.check_plannable())
        setting = {**kind.settings_of(options), "model": chosen.source.name, "family": chosen.family.name}
        planned = plan(kind(**setting, gpus=f"{process.world_size}x{total / 2**30:.1f}GiB"), chosen)
    except UsageError as unplanned:
        return f"{first}\n{unplanned}"
    return f"{first}\n{format_plan(planned, suggest(planned, chosen))}"


def _unlike(checkpoints: Checkpoints, source: Source, options: TrainOptions) -> str:
    """One line on inputs that are given and are not those of the checkpoint; empty where there are none."""
    names = options.INPUTS if source.path else ()
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    bare: dict[str, Any] = dict.fromkeys(given)
    own = checkpoints.settled(source, replace(options, **bare)) if given else options
    others = {name: told for name in given if (told := getattr(own, name)) not in (None, given[name])}
    shown = ", ".join(f"{flag(name)} {given[name]} instead of {told}" for name, told in others.items())
    return f"inputs other than the checkpoint's: {shown}" if others else ""


def _identify(checkpoints: Checkpoints, source: Source, options: TrainOptions) -> str:
    """What the run starts from: the preset's name, or the hash of the checkpoint's content."""
    if source.kind == "sizes":
        raise UsageError(f"--checkpoint {source.name}: sizes that are only planned; expected weights or a preset")
    if options.vocabulary_of and source.path is not None:
        raise UsageError(
            f"--vocabulary-of: {source.name} has its words, only a preset:NAME is given some; leave it out"
        )
    checkpoints.config(source, options)  # what does not suit the network is refused before anything is written
    return f"preset {source.name}" if source.path is None else checkpoints.content_hash(source.path, options)


def _base(
    options: TrainOptions, checkpoints: Checkpoints, source: Source, texts: Iterable[str], process: Process
) -> Path:
    """Folder of the checkpoint to start from. A preset's is made, with a tokenizer for the texts."""
    if source.path is not None:
        return source.path
    folder = options.out / BASE
    if process.first and not folder.exists():
        checkpoints.create(source.name, folder, texts, options.seed)
    barrier(process)
    return folder


class _Run:
    """One process's share of a run."""

    def __init__(
        self,
        options: TrainOptions,
        kind: Trainable,
        base: Path,
        process: Process,
        objective: Objective,
        placement: Placement,
        watch: HangWatch,
        speed: Speed,
    ) -> None:
        self._options, self._kind, self._base = options, kind, base
        trains = kind.trains
        self._process, self._objective, self._hangs, self._speed = process, objective, watch, speed
        self._watch = vram.start(process.device.index)
        self._watch.begin("load")
        watch.at("loading weights")
        self._schedule = objective.schedule
        self._used = 0.0  # CPU seconds of this process at the last line of the log
        model = trains.fitted(kind.checkpoints.load(base, options, placement), options)
        freeze(model, trains, options)
        model.train()
        if options.gradient_checkpointing:
            trains.enable_checkpointing(model)
        trained = groups(model, trains, options)
        if process.first:
            write_json(options.out / COUNTS, {**count(model, trained, options), "data": objective.counts()})
            say("\n".join(filter(None, (format_groups(model, trained, options), trains.remark(model, options)))))
        settle_arithmetic(placement.dtype, tf32=options.tf32, deterministic=options.deterministic)
        if options.dtype == "mixed":
            keep_products()
        self._settle_threads(model)
        self._phases = Phases(process.device, watch.phase)
        objective.prepare(model, base, self._phases)
        watch.at("starting DeepSpeed")
        self._watch.begin("engine")
        self._engine = start_engine(model, options, trained, process, placement.dtype, trains.uneven(model))
        if options.compile:
            self._engine.compile()
        else:
            speed.count(model)
        self._watch.begin("steps")
        watch.at("reading the last state")
        self._start = load_state(self._engine, options.out / STATE)
        objective.begin(Begun(self._engine, self._start, self._watch))

    def _settle_threads(self, model: torch.nn.Module) -> None:
        """Choose PyTorch's threads on the CPU by timing a batch, or take those with which the run was begun."""
        objective = self._objective
        if self._process.device.type != "cpu":
            if self._options.offload_optimizer:
                share_cores(self._process)
            return
        if not isinstance(objective, Rehearses):
            settle_threads(self._options.out / THREADS, self._process, None)
            return
        batch = cache(lambda: objective.rehearsal(model, self._base))

        def forth_and_back() -> None:
            self._kind.trains.loss(model, batch()).backward()  # type: ignore[no-untyped-call]
            model.zero_grad(set_to_none=True)

        with torch.random.fork_rng(devices=[]):
            settle_threads(self._options.out / THREADS, self._process, forth_and_back)

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.stop()
        self._engine.destroy()  # without this, ZeRO 3 may abort the process after its work is done

    def go(self) -> Trained:
        """Train to the end and write the checkpoint."""
        options, schedule = self._options, self._schedule
        began = time.monotonic()
        loss = math.nan
        with ExitStack() as stack:
            if self._process.first:
                log = stack.enter_context(open_for_append(options.out / LOG))
                progress = stack.enter_context(Progress("training"))
                tracked = TrackedRun(str(options.out), options.out, plain(options))
                trackers = stack.enter_context(Trackers(parse_trackers(options.tracker), tracked))
            losses: list[torch.Tensor] = []
            self._speed.take(1.0)  # what the start took is not of any step
            logged, self._used = time.monotonic(), time.process_time()
            for step in range(self._start + 1, schedule.steps + 1):
                losses.append(self._step(step))
                if step == self._start + 1:
                    losses[0].item()  # so that it is done, on a GPU too
                    self._hangs.first_step(step, time.monotonic() - logged)
                if step % options.log_every == 0 or step == schedule.steps:
                    self._hangs.at(f"what step {step} gave")
                    loss = self._mean(losses)
                    peaks = self._peaks()
                    notes = {"memory": peaks, "memory_spread": spread(peaks), **self._objective.notes()}
                    now = time.monotonic()
                    if self._process.first:
                        rate = len(losses) * schedule.windows_per_step / (now - logged)
                        entry = self._entry(step, loss, rate) | self._speed.take(now - logged) | notes
                        append_line(log, entry)
                        trackers.log(numbers(entry), step)
                        progress.update(step, schedule.steps, training_note(entry))
                    losses, logged = [], now
                if step % options.save_every == 0 and step < schedule.steps:  # once the line is there
                    self._hangs.at(f"saving the state of step {step}")
                    with self._phases.timed("save"):
                        save_state(self._engine, options.out / STATE, step, self._process)
            self._save_model()
            if self._process.first:
                trackers.summarize({"loss": loss, "steps": schedule.steps, "seconds": time.monotonic() - began})
        if self._process.first and (line := self._objective.summary()):
            say(line)
        return Trained(options.out / MODEL, schedule.steps, time.monotonic() - began, loss)

    def _step(self, step: int) -> torch.Tensor:
        """One optimizer step; returns this rank's mean loss."""
        engine, timed = self._engine, self._phases.timed
        self._hangs.at(f"step {step}")
        torch.manual_seed(hash((self._options.seed, step, self._process.rank)))  # dropout, the same when resumed
        for group in engine.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * rate_factor(self._options, step, self._schedule.steps)
        total = torch.zeros((), device=self._process.device)
        for loss in self._objective.losses(step):
            with timed("backward"):
                engine.backward(loss)
            with timed("optimizer"):
                engine.step()
            total += loss.detach().float()
        return total / self._options.accumulation

    def _mean(self, losses: list[torch.Tensor]) -> float:
        """Mean over steps and ranks."""
        mean = torch.stack(losses).mean()
        if self._process.world_size > 1:
            torch.distributed.all_reduce(mean)
            mean /= self._process.world_size
        if not torch.isfinite(mean):
            raise RunError(f"the loss is {mean.item()}; begin again with a lower --learning-rate")
        return float(mean)

    def _peaks(self) -> list[dict[str, Any]]:
        """Peak memory of every rank since the run or its continuation began, in bytes; null where not known."""
        mine = asdict(self._watch.peaks())
        if self._process.world_size == 1:
            return [mine]
        every: list[Any] = [None] * self._process.world_size
        torch.distributed.all_gather_object(every, mine)
        return every

    def _entry(self, step: int, loss: float, rate: float) -> dict[str, Any]:
        """One line of the log."""
        norm = self._engine.get_global_grad_norm()
        applied = {group["name"]: group["lr"] for group in self._engine.optimizer.param_groups}
        before, self._used = self._used, time.process_time()
        return {
            "step": step,
            "epoch": round(step * self._schedule.windows_per_step / self._schedule.windows_per_epoch, 4),
            "loss": round(loss, 6),
            "grad_norm": None if norm is None else round(float(norm), 6),
            "learning_rates": applied,
            "windows_per_s": round(rate, 3),
            "cpu_seconds": round(self._used - before, 4),
            "seconds": self._phases.take(),
        }

    def _save_model(self) -> None:
        self._hangs.at("writing the checkpoint")
        with self._phases.timed("save"):
            merge_adapters(self._engine.module)
            model = _in_host_memory(self._engine.module, self._kind.checkpoints, self._process.first)
            if self._process.first:
                self._kind.checkpoints.save(model, self._options.out / MODEL, self._base, self._options)
                shutil.rmtree(self._options.out / STATE, ignore_errors=True)
            barrier(self._process)


def _in_host_memory(model: Any, checkpoints: Checkpoints, keep: bool) -> Any:
    """The model with whole parameters of its own, on the process that keeps it: ZeRO flattens or scatters them."""
    import deepspeed

    whole = checkpoints.shapes(model)
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            if keep:
                parent, _, leaf = name.rpartition(".")
                copy = torch.nn.Parameter(parameter.detach().cpu().clone())
                whole.get_submodule(parent).register_parameter(leaf, copy)
    return whole


def rate_factor(options: TrainOptions, step: int, steps: int) -> float:
    """Learning rate of optimizer step `step` (from 1) as a fraction of its peak."""
    rising = math.ceil(options.warmup * steps)
    if step <= rising:
        return step / rising
    if options.schedule == "constant":
        return 1.0
    done = (step - 1 - rising) / max(1, steps - 1 - rising)
    fallen = (1 + math.cos(math.pi * done)) / 2 if options.schedule == "cosine" else 1 - done
    return options.min_lr + (1 - options.min_lr) * fallen
