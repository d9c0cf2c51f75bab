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
from dataclasses import asdict, replace
from pathlib import Path

import torch
from tabulate import tabulate

from vlnbench.training.memory.plan import GB, GIB, Plan, PlanRequest, plan
from vlnbench.training.memory.trace import DTYPES, TraceRequest, build, make_inputs, model_config
from vlnbench.training.options import TrainOptions, step_options
from vlnbench.training.parts import groups
from vlnbench.training.setup import deepspeed_config, find_process, make_optimizer
from vlnbench.util.measure import VramPeaks, start

VISION_PROJECTOR = "mm_vision_tower,mm_mlp_adapter"
SETTINGS = (
    PlanRequest(tunable_parts="mm_mlp_adapter"),
    PlanRequest(tunable_parts="mm_mlp_adapter", batch=1, gradient_checkpointing=False),
    PlanRequest(tunable_parts=VISION_PROJECTOR, zero=1, batch=4, accumulation=1),
    PlanRequest(tunable_parts=VISION_PROJECTOR, offload_optimizer=True),
    PlanRequest(tunable_parts="mm_mlp_adapter", lora_rank=64),
    PlanRequest(tunable_parts=VISION_PROJECTOR, zero=3),
    PlanRequest(zero=0, optimizer="adafactor"),
    PlanRequest(offload_optimizer=True),
)
STEPS = 3


def fitting(host_gb: float) -> list[Plan]:
    """Plans of the settings that this machine has room for."""
    total = torch.cuda.get_device_properties(0).total_memory
    gpus = f"1x{total // (GIB // 10) / 10:.1f}GiB"
    plans = [plan(replace(setting, gpus=gpus)) for setting in SETTINGS]
    return [each for each in plans if each.fits == "yes" and each.host <= host_gb * GB]


def measure(request: PlanRequest) -> VramPeaks:
    """Train a few steps in a process of its own. Peaks start after the engine has been set up."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "peaks.json")
        command = [sys.executable, __file__, "--setting", json.dumps(asdict(request)), "--out", str(out)]
        subprocess.run(command, check=True, timeout=1200)
        return VramPeaks(**json.loads(out.read_text()))


def run_setting(request: PlanRequest) -> VramPeaks:
    import deepspeed

    process = find_process()
    torch.cuda.set_device(process.device)
    traced = TraceRequest(**{name: getattr(request, name) for name in TraceRequest.__slots__})
    config = model_config(request.model, request.image_size)
    network, _ = build(config, traced, str(process.device))
    options = TrainOptions(checkpoint="", out=Path(), **step_options(request))
    deepspeed.init_distributed(dist_backend="nccl", verbose=False)
    engine, *_ = deepspeed.initialize(
        model=network,
        optimizer=make_optimizer(options, groups(network, options), process.device),
        config=deepspeed_config(options, DTYPES[request.dtype]),
    )
    inputs = make_inputs(config, traced, "cpu")
    torch.cuda.empty_cache()
    watch = start()
    for _ in range(STEPS * request.accumulation):
        loss = engine(**inputs, want_logits=False).loss
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
    name = f"{request.tunable_parts} zero {request.zero} batch {request.batch} {request.optimizer}"
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
        peaks = run_setting(PlanRequest(**json.loads(arguments.setting)))
        arguments.out.write_text(json.dumps(peaks.to_json()))
        return
    rows = [row(planned, measure(planned.request)) for planned in fitting(arguments.host_gb)]
    headers = ["setting", "planned", "allocated", "off by", "planned", "reserved", "planned", "device", "retries"]
    print(tabulate(rows, headers=headers, disable_numparse=True))


if __name__ == "__main__":
    main()
