"""Memory of training steps, planned and measured: one setting in this process, in DeepSpeed as the trainer is."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from agents.streamvln.options import StreamVLNPlanning, StreamVLNStep, StreamVLNTraining
from benchmarks.gpu_evidence.pieces import CannotRunError, Job, request
from benchmarks.gpu_evidence.record import host_bytes
from benchmarks.rollout.streamvln import random_weights
from tests.training.geometry import write_small
from vlnbench.training.family.find import find_family
from vlnbench.training.family.trains import Trains
from vlnbench.training.memory.plan import GB, GIB, Plan, plan
from vlnbench.training.memory.trace import DTYPES, default_dtype
from vlnbench.training.memory.tracker import LiveMemory
from vlnbench.training.parts import freeze, groups
from vlnbench.training.setup import Process, connected, find_process, start_engine
from vlnbench.util.measure import start

STEPS, TOY_STEPS = 3, 2
"""Optimizer steps that are measured: from the second on, states and sums of gradients are there."""
HOST_SPARE = 8 * GB
"""Host memory that is left to everything else."""
MOMENTS = ("forward", "backward", "optimizer step")


def run(job: Job) -> Mapping[str, Any]:
    """Plan a setting, then train it for a few steps. Raises CannotRunError where it cannot fit by the plan."""
    before = used_bytes()
    process = find_process()
    with tempfile.TemporaryDirectory() as folder:
        setting = _toy(job, Path(folder)) if job.toy else request(job.case, gpus=_gpus())
        planned = plan(setting)
        found: dict[str, Any] = {"planned": shown(planned)}
        job.save(found)
        if not job.toy:
            _check_room(planned)
        found["measured"] = measure(planned.request, process, before)
    return found


def _toy(job: Job, folder: Path) -> StreamVLNPlanning:
    small = {"model": str(write_small(folder)), "frames": 16, "history": 4, "text_tokens": 120}
    setting = request(job.case, **small)
    if setting.optimizer == "adamw8bit":
        raise CannotRunError("8-bit states work on the GPU only")
    return setting


def _gpus() -> str:
    """This GPU, with what is free on it."""
    free, _ = torch.cuda.mem_get_info(0)
    return f"1x{free / GIB:.1f}GiB"


def _check_room(planned: Plan) -> None:
    if planned.fits == "no":
        raise CannotRunError(
            f"planned {planned.peak / GB:.1f} GB, the GPU has {planned.gpus.usable / GB:.1f} free"
        )
    there = host_bytes() - HOST_SPARE
    if planned.host > there:
        raise CannotRunError(f"planned {planned.host / GB:.0f} GB of host memory, {there / GB:.0f} may be used")


def shown(planned: Plan) -> dict[str, Any]:
    """A plan's figures in bytes, as the record has them."""
    usage = planned.usage
    return {
        "usage": {name: value for name, value in asdict(usage).items() if name != "moment"},
        "allocated": usage.total,
        "peak": planned.peak,
        "low": planned.low,
        "high": planned.high,
        "static": usage.static,
        "changing": usage.changing,
        "context": planned.context,
        "fragmentation": planned.fragmentation,
        "host": planned.host,
        "moment": usage.moment,
        "moments": dict(planned.peaks),
        "tokens": planned.tokens,
    }


class Moments:
    """Largest bytes of live tensors in each part of a step, and what the allocator held for them.

    counted: our own count on the CPU; None: PyTorch's on the GPU.
    """

    def __init__(self, counted: LiveMemory | None) -> None:
        self._counted = counted
        self.peaks = dict.fromkeys(MOMENTS, 0)
        self.reserved = 0

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Around one part of a step."""
        if self._counted is None:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        else:
            self._counted.restart_peak()
        yield
        self.peaks[name] = max(self.peaks[name], self.peak())
        if self._counted is None:
            self.reserved = max(self.reserved, torch.cuda.max_memory_reserved())

    def peak(self) -> int:
        """Since the last part began."""
        if self._counted is not None:
            return self._counted.peak
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()


def measure(setting: StreamVLNPlanning, process: Process, before: int | None) -> dict[str, Any]:
    """Peaks in bytes by moment and of all, of setting up and of steps apart; milliseconds of an optimizer step.

    before: bytes in use on the GPU before this process began to use it.
    """
    with ExitStack() as stack:
        stack.enter_context(connected(process))
        on_gpu = process.device.type == "cuda"
        spec, source = find_family(setting.family, setting.model, "--model")
        trains = spec.load_trains()
        config = spec.load_checkpoints().config(source, setting)
        network = random_weights(config, DTYPES[setting.dtype], process.device, "sdpa").train()
        moments = Moments(None if on_gpu else stack.enter_context(_counting(network)))
        engine = _engine(network, trains, setting, process)
        stack.callback(engine.destroy)
        setup = moments.peak()
        batch = spec.load_plans().probe(config, setting, "cpu").batch  # as the trainer's come
        if on_gpu:
            torch.cuda.empty_cache()
        watch = start()
        stack.callback(watch.stop)
        seconds: list[float] = []
        for _ in range(STEPS if on_gpu else TOY_STEPS):
            began = time.perf_counter()
            for _ in range(setting.accumulation):
                with moments.of("forward"):
                    loss = trains.loss(engine, batch)
                with moments.of("backward"):
                    engine.backward(loss)
                    del loss
                with moments.of("optimizer step"):
                    engine.step()
            seconds.append(time.perf_counter() - began)
        peaks, used = watch.peaks(), used_bytes()
        known = used is not None and before is not None
        return {
            "allocated": max(moments.peaks.values()),
            "moments": moments.peaks,
            "setup": setup,
            "reserved": moments.reserved or None,
            "device": peaks.device,
            "context": used - before - torch.cuda.memory_reserved() if known else None,
            "alloc_retries": peaks.alloc_retries,
            "host": peaks.host,
            "ms_per_step": [round(1000 * each, 1) for each in seconds],
        }


@contextmanager
def _counting(network: torch.nn.Module) -> Iterator[LiveMemory]:
    """Count live bytes from here on, those of a network among them."""
    with LiveMemory(shapes=False) as counted:
        counted.live = counted.peak = sum(each.numel() * each.element_size() for each in network.parameters())
        yield counted


def _engine(network: torch.nn.Module, trains: Trains, setting: StreamVLNPlanning, process: Process) -> Any:
    """DeepSpeed's engine around a network, as the trainer makes it."""
    with default_dtype(DTYPES[setting.dtype]), process.device:
        freeze(network, trains, setting)  # makes the adapters, if any
    if setting.gradient_checkpointing:
        trains.enable_checkpointing(network)
    trained = groups(network, trains, setting)
    shared = {each.name: getattr(setting, each.name) for each in fields(StreamVLNStep)}
    options = StreamVLNTraining(checkpoint=setting.model, out=Path(), **shared)
    return start_engine(network, options, trained, process, DTYPES[setting.dtype])


def used_bytes() -> int | None:
    """What is in use on the GPU, whoever uses it; None where the driver does not tell."""
    device = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not device:
        return None
    query = ["nvidia-smi", f"--id={device}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
        return int(answer.strip()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
