"""Training: windows in, a checkpoint out, resumable at any moment."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vlnbench.errors import GpuMemoryError, RunError, UsageError
from vlnbench.training import data
from vlnbench.training.feature_cache import open_cache
from vlnbench.training.log import Phases, taken
from vlnbench.training.memory.trace import model_config
from vlnbench.training.options import TrainOptions
from vlnbench.training.parts import count, format_groups, freeze, groups, merge_adapters
from vlnbench.training.run_folder import BASE, COUNTS, LOG, MODEL, OUT_OF_MEMORY, STATE, open_run, run_manifest
from vlnbench.training.setup import (
    Process,
    barrier,
    connected,
    deepspeed_config,
    find_process,
    start_engine,
)
from vlnbench.util import measure as vram
from vlnbench.util.files import append_line, open_for_append, write_json
from vlnbench.util.loading import import_string
from vlnbench.util.names import split_names
from vlnbench.util.progress import Progress, say
from vlnbench.util.trackers import TrackedRun, Trackers, numbers, parse_trackers


@dataclass(frozen=True)
class Trained:
    """A finished run: where the checkpoint is, optimiser steps, wall-clock seconds of this session, last loss."""

    model: Path
    steps: int
    seconds: float
    loss: float | None


def train(options: TrainOptions) -> Trained:
    """Train, or go on with the run that `options.out` holds.

    Raises UsageError, before any weight is read, for options, files and folders that do not fit.
    """
    process = find_process()
    options.check(process.world_size)
    parse_trackers(split_names(options.tracker))  # a missing package is named before anything is written
    place = import_string("agents.common.placement:place")(
        str(process.device), options.dtype, options.attn, torch.bfloat16
    )
    deepspeed_config(options, place.dtype)  # a contradicting file is named before anything is read
    data.make_windows(options)
    started_from = _identify(options)
    sets = data.read_sets(options)
    schedule = data.make_schedule(options, sets, process.world_size)
    with ExitStack() as stack:
        if process.first:
            manifest = run_manifest(options, started_from, sets, schedule, process, place)
            stack.enter_context(open_run(options, manifest))
            say(data.format_sets(sets, schedule))
        if (options.out / MODEL).exists():
            if process.first:
                say(f"{options.out / MODEL}: this run is complete")
            return Trained(options.out / MODEL, 0, 0.0, None)
        stack.enter_context(connected(process))
        base = _base(options, sets, process)
        if process.first:
            (options.out / OUT_OF_MEMORY).unlink(missing_ok=True)
        barrier(process)
        try:
            run = stack.enter_context(_Run(options, base, process, sets, schedule, place))
            return run.go(run.batches())
        except torch.cuda.OutOfMemoryError as error:
            write_json(options.out / OUT_OF_MEMORY, taken(process.device, process.rank))
            raise GpuMemoryError(_advice(options, base, process, error)) from error


def _advice(options: TrainOptions, base: Path, process: Process, error: Exception) -> str:
    """What did not fit, how much memory was taken, and what the planner would change."""
    from vlnbench.training.memory.plan import PlanRequest, plan
    from vlnbench.training.memory.report import format_plan
    from vlnbench.training.memory.search import suggest

    total = torch.cuda.get_device_properties(process.device).total_memory
    setting = replace(options, checkpoint=str(base))
    planned = plan(PlanRequest.of(setting, f"{process.world_size}x{total / 2**30:.1f}GiB"))
    taken = torch.cuda.max_memory_allocated(process.device) / 1e9
    first = str(error).splitlines()[0]
    report = format_plan(planned, suggest(planned))
    return f"out of memory on {process.device} after {taken:.1f} GB: {first}\n{report}"


def _identify(options: TrainOptions) -> str:
    """What the run starts from: the preset's name, or the hash of the checkpoint's content."""
    folder = _folder(options)
    # An image size that cannot be is refused before anything is written.
    model_config(str(folder or options.checkpoint), options.image_size, options.vision_tower)
    if folder is None:
        return f"preset {options.checkpoint}"
    checkpoint = import_string("agents.streamvln.checkpoint:content_hash")
    return str(checkpoint(folder, tokenizer=options.tokenizer, vision_tower=options.vision_tower))


def _folder(options: TrainOptions) -> Path | None:
    """The checkpoint's folder, None for a preset. Raises UsageError for a name that is neither."""
    presets = import_string("agents.streamvln.presets:PRESETS")
    folder = Path(options.checkpoint)
    if folder.is_dir():
        return folder
    if options.checkpoint in presets:
        return None
    shipped: dict[str, Path] = import_string("agents.streamvln.checkpoint:shipped")()
    if options.checkpoint not in shipped:
        raise UsageError(
            f"--checkpoint {options.checkpoint}: no such folder, and no preset of that name "
            f"(presets: {', '.join(presets)}) or shipped checkpoint ({', '.join(shipped)})"
        )
    return shipped[options.checkpoint]


def _base(options: TrainOptions, sets: list[data.TrainingSet], process: Process) -> Path:
    """Folder of the checkpoint to start from. A preset's is made, with a tokenizer for the sets' texts."""
    found = _folder(options)
    if found is not None:
        return found
    folder = options.out / BASE
    if process.first and not folder.exists():
        texts = [text for each in sets for text in each.texts]
        preset = import_string("agents.streamvln.presets:PRESETS")[options.checkpoint]
        import_string("agents.streamvln.presets:create")(preset, folder, texts, options.seed)
    barrier(process)
    return folder


class _Run:
    """One process's share of a run."""

    def __init__(
        self,
        options: TrainOptions,
        base: Path,
        process: Process,
        sets: list[data.TrainingSet],
        schedule: data.Schedule,
        place: Any,
    ) -> None:
        self._options = options
        self._base = base
        self._process = process
        self._sets = sets
        self._schedule = schedule
        model = import_string("agents.streamvln.checkpoint:load")(
            base,
            vision_tower=options.vision_tower,
            dtype=place.dtype,
            attn=place.attn,
            image_size=options.image_size,
        )
        model.config = replace(  # the agent has to act in the rhythm of the training
            model.config,
            num_frames=options.frames,
            num_history=options.history,
            num_future_steps=options.future_steps,
        )
        freeze(model, options)
        model.train()
        if options.gradient_checkpointing:
            model.enable_checkpointing()
        trained = groups(model, options)
        if process.first:
            write_json(options.out / COUNTS, {**count(model, trained), "data": data.count(sets)})
            say(format_groups(model, trained))
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.tf32
        self._tower = open_cache(options, model, process) if options.feature_cache else None
        self._phases = Phases(process.device)
        projector = model.model.mm_projector
        first = model.tower.get_submodule("embeddings") if self._tower is None else projector
        self._phases.watch(model, first, projector)
        self._engine = start_engine(model, options, trained, process, place.dtype)
        if options.compile:
            self._engine.compile()
        self._watch = vram.start()
        self._start = self._load_state()

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.stop()
        self._engine.destroy()  # without this, ZeRO 3 may abort the process after its work is done

    def batches(self) -> Iterator[dict[str, Any]]:
        """This process's batches from where the run stands."""
        options, sets = self._options, self._sets
        tokenizer = import_string("agents.streamvln.checkpoint:load_tokenizer")(self._base, options.tokenizer)
        order = data.RankBatches(sets, self._schedule, options, self._process.rank, self._start)
        size = self._engine.module.config.vision.image_size
        known = None if self._tower is None else self._tower.known
        return iter(data.make_loader(sets, tokenizer, options, order, size, known))

    def go(self, batches: Iterator[dict[str, Any]]) -> Trained:
        """Train to the end and write the checkpoint."""
        options, schedule = self._options, self._schedule
        began = time.monotonic()
        loss = math.nan
        with ExitStack() as stack:
            if self._process.first:
                log = stack.enter_context(open_for_append(options.out / LOG))
                progress = stack.enter_context(Progress("training"))
                tracked = TrackedRun(
                    str(options.out), options.out, json.loads(json.dumps(asdict(options), default=str))
                )
                trackers = stack.enter_context(Trackers(parse_trackers(split_names(options.tracker)), tracked))
            losses: list[torch.Tensor] = []
            logged = time.monotonic()
            for step in range(self._start + 1, schedule.steps + 1):
                losses.append(self._step(step, batches))
                if step % options.save_every == 0 and step < schedule.steps:
                    self._save_state(step)
                if step % options.log_every and step != schedule.steps:
                    continue
                loss = self._mean(losses)
                notes: dict[str, Any] = {"memory": self._peaks()}
                if self._tower is not None:
                    notes["feature_cache"] = self._tower.count()
                now = time.monotonic()
                if self._process.first:
                    rate = len(losses) * schedule.windows_per_step / (now - logged)
                    entry = self._entry(step, loss, rate) | notes
                    append_line(log, entry)
                    trackers.log(numbers(entry), step)
                    progress.update(step, schedule.steps, f"loss {loss:.4f}, {rate:.2f} windows/s")
                losses, logged = [], now
            self._save_model()
            if self._process.first:
                trackers.summarize({"loss": loss, "steps": schedule.steps, "seconds": time.monotonic() - began})
        if self._tower is not None and self._process.first:
            say(self._tower.describe())
        return Trained(options.out / MODEL, schedule.steps, time.monotonic() - began, loss)

    def _step(self, step: int, batches: Iterator[dict[str, Any]]) -> torch.Tensor:
        """One optimiser step; returns this rank's mean loss."""
        engine, timed = self._engine, self._phases.timed
        torch.manual_seed(hash((self._options.seed, step, self._process.rank)))  # dropout, the same when resumed
        for group in engine.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * rate_factor(self._options, step, self._schedule.steps)
        total = torch.zeros((), device=self._process.device)
        for _ in range(self._options.accumulation):
            with timed("load"):
                batch = next(batches)
            if self._tower is not None:
                with timed("vision"):
                    batch["images"] = self._tower.features(batch["images"])
            loss = engine(**batch, want_logits=False).loss
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
        mine = self._watch.peaks().to_json()
        if self._process.world_size == 1:
            return [mine]
        every: list[Any] = [None] * self._process.world_size
        torch.distributed.all_gather_object(every, mine)
        return every

    def _entry(self, step: int, loss: float, rate: float) -> dict[str, Any]:
        """One line of the log."""
        norm = self._engine.get_global_grad_norm()
        applied = {group["name"]: group["lr"] for group in self._engine.optimizer.param_groups}
        return {
            "step": step,
            "epoch": round(step * self._schedule.windows_per_step / self._schedule.windows_per_epoch, 4),
            "loss": round(loss, 6),
            "grad_norm": None if norm is None else round(float(norm), 6),
            "learning_rates": applied,
            "windows_per_s": round(rate, 3),
            "seconds": self._phases.take(),
        }

    def _save_state(self, step: int) -> None:
        """Write what a resumed run needs. The state before it is removed when this one is complete."""
        with self._phases.timed("save"):
            folder = self._options.out / STATE
            part = folder / f".step-{step}"
            if self._process.first:
                shutil.rmtree(part, ignore_errors=True)
            barrier(self._process)
            self._engine.save_checkpoint(str(part), tag="all", exclude_frozen_parameters=True)
            barrier(self._process)
            if self._process.first:
                part.rename(folder / f"step-{step}")
                for stale in folder.iterdir():
                    if stale.name != f"step-{step}":
                        shutil.rmtree(stale)
            barrier(self._process)

    def _load_state(self) -> int:
        """Take up the last state; returns how many steps are done."""
        found = sorted((self._options.out / STATE).glob("step-*"), key=lambda path: int(path.name[5:]))
        if not found:
            return 0
        self._engine.load_checkpoint(str(found[-1]), tag="all", load_module_strict=False)
        return int(found[-1].name[5:])

    def _save_model(self) -> None:
        with self._phases.timed("save"):
            merge_adapters(self._engine.module)
            model = _in_host_memory(self._engine.module, self._process.first)
            if self._process.first:
                import_string("agents.streamvln.checkpoint:save")(
                    model,
                    self._options.out / MODEL,
                    source=self._base,
                    tokenizer=self._options.tokenizer,
                )
                shutil.rmtree(self._options.out / STATE, ignore_errors=True)
            barrier(self._process)


def _in_host_memory(model: Any, keep: bool) -> Any:
    """The model with whole parameters of its own, on the process that keeps it: ZeRO flattens or scatters them."""
    import deepspeed

    with torch.device("meta"):
        whole = type(model)(model.config)
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            if keep:
                parent, _, leaf = name.rpartition(".")
                copy = torch.nn.Parameter(parameter.detach().cpu().clone())
                whole.get_submodule(parent).register_parameter(leaf, copy)
    return whole


def rate_factor(options: TrainOptions, step: int, steps: int) -> float:
    """Learning rate of optimiser step `step` (from 1) as a fraction of its peak."""
    rising = math.ceil(options.warmup * steps)
    if step <= rising:
        return step / rising
    if options.schedule == "constant":
        return 1.0
    done = (step - 1 - rising) / max(1, steps - 1 - rising)
    fallen = (1 + math.cos(math.pi * done)) / 2 if options.schedule == "cosine" else 1 - done
    return options.min_lr + (1 - options.min_lr) * fallen
