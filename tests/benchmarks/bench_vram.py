"""Planned and measured GPU memory of the full-size network with random weights, a process for each setting.

    python tests/benchmarks/bench_vram.py [--host-gb 64]

Needs a CUDA device and DeepSpeed; settings that do not fit the GPU, or the host where they offload, are left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, fields, replace
from pathlib import Path

import torch
from tabulate import tabulate

from agents.streamvln.training.options import (
    PROJECTOR,
    VISION_TOWER,
    StreamVLNPlanning,
    StreamVLNStep,
    StreamVLNTraining,
)
from vlnbench.training.families import find_family
from vlnbench.training.memory.plan import GB, GIB, Plan, plan
from vlnbench.training.memory.trace import DTYPES, build
from vlnbench.training.setup import deepspeed_config, find_process, make_optimizer
from vlnbench.util.measure import VramPeaks, start

VISION_PROJECTOR = (VISION_TOWER, PROJECTOR)
SETTINGS = (
    StreamVLNPlanning(tunable_parts=(PROJECTOR,)),
    StreamVLNPlanning(tunable_parts=(PROJECTOR,), batch=1, gradient_checkpointing=False),
    StreamVLNPlanning(tunable_parts=VISION_PROJECTOR, zero=1, batch=4, accumulation=1),
    StreamVLNPlanning(tunable_parts=VISION_PROJECTOR, offload_optimizer=True),
    StreamVLNPlanning(tunable_parts=(PROJECTOR,), lora_rank=64),
    StreamVLNPlanning(tunable_parts=VISION_PROJECTOR, zero=3),
    StreamVLNPlanning(zero=0, optimizer="adafactor"),
    StreamVLNPlanning(offload_optimizer=True),
)
STEPS = 3


def fitting(host_gb: float) -> list[Plan]:
    """Plans of the settings that this machine has room for."""
    total = torch.cuda.get_device_properties(0).total_memory
    gpus = f"1x{total // (GIB // 10) / 10:.1f}GiB"
    plans = [plan(replace(setting, gpus=gpus)) for setting in SETTINGS]
    return [each for each in plans if each.fits == "yes" and each.host <= host_gb * GB]


def measure(request: StreamVLNPlanning) -> VramPeaks:
    """Train a few steps in a process of its own. Peaks start after the engine has been set up."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "peaks.json")
        command = [sys.executable, __file__, "--setting", json.dumps(asdict(request)), "--out", str(out)]
        subprocess.run(command, check=True, timeout=1200)
        return VramPeaks(**json.loads(out.read_text()))


def run_setting(request: StreamVLNPlanning) -> VramPeaks:
    import deepspeed

    process = find_process()
    torch.cuda.set_device(process.device)
    spec, source = find_family(request.family, request.model, "--model")
    family = spec.load()
    config = family.config(source, request)
    network, trained = build(family, config, request, str(process.device))
    shared = {each.name: getattr(request, each.name) for each in fields(StreamVLNStep)}
    options = StreamVLNTraining(checkpoint=request.model, out=Path(), **shared)
    deepspeed.init_distributed(dist_backend="nccl", verbose=False)
    engine, *_ = deepspeed.initialize(
        model=network,
        optimizer=make_optimizer(options, trained, process.device),
        config=deepspeed_config(options, DTYPES[request.dtype]),
    )
    batch = family.probe(config, request, "cpu").batch
    torch.cuda.empty_cache()
    watch = start()
    for _ in range(STEPS * request.accumulation):
        loss = family.loss(engine, batch)
        engine.backward(loss)
        del loss
        engine.step()
    torch.cuda.synchronize()
    peaks = watch.peaks()
    watch.stop()
    engine.destroy()
    return peaks


def row(planned: Plan, measured: VramPeaks) -> list[str]:
    request = planned.request
    name = f"{'+'.join(request.tunable_parts)} zero {request.zero} batch {request.batch} {request.optimizer}"
    name += " offload" * request.offload_optimizer + f" rank {request.lora_rank}" * bool(request.lora_rank)
    name += "" if request.gradient_checkpointing else " no checkpointing"
    allocated = measured.allocated or 0
    cells = [planned.usage.total, allocated, planned.peak - planned.context, measured.reserved, planned.peak]
    shown = [f"{cell / GB:.2f}" if cell else "" for cell in (*cells, measured.device)]
    return [
        name,
        *shown[:2],
        f"{planned.usage.total / allocated - 1:+.1%}",
        *shown[2:],
        str(measured.alloc_retries),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host-gb", type=float, default=64.0, help="host memory that may be used")
    parser.add_argument("--setting", help="one setting as JSON: measure it in this process")
    parser.add_argument("--out", type=Path, help="file for the peaks of --setting")
    arguments = parser.parse_args()
    if arguments.setting:
        setting = json.loads(arguments.setting)
        peaks = run_setting(StreamVLNPlanning(**setting | {"tunable_parts": tuple(setting["tunable_parts"])}))
        arguments.out.write_text(json.dumps(peaks.to_json()))
        return
    rows = [row(planned, measure(planned.request)) for planned in fitting(arguments.host_gb)]
    headers = ["setting", "planned", "allocated", "off by", "planned", "reserved", "planned", "device", "retries"]
    print(tabulate(rows, headers=headers, disable_numparse=True))


if __name__ == "__main__":
    main()
