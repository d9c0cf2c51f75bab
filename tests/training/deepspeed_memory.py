"""Two optimiser steps of a small StreamVLN under DeepSpeed on the CPU, with every live byte counted.

Arguments: model folder, ZeRO stage, accumulation, parts, optimizer, offload (0 or 1), file for the peaks.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["DS_ACCELERATOR"] = "cpu"

from tests.training.geometry import small_request
from vlnbench.training.memory_trace import build, make_inputs, model_config
from vlnbench.training.memory_tracker import LiveMemory
from vlnbench.training.options import TrainOptions
from vlnbench.training.parts import groups
from vlnbench.training.setup import deepspeed_config, find_process, make_optimizer

BUCKET = 60_000


def main() -> None:
    model, stage, accumulation, parts, optimizer, offload, out = sys.argv[1:]
    torch.set_num_threads(1)
    process = find_process()
    options = TrainOptions(
        checkpoint=Path(model),
        out=Path(out),
        tunable_parts=parts,
        zero=int(stage),
        accumulation=int(accumulation),
        optimizer=optimizer,  # type: ignore[arg-type]
        offload_optimizer=offload == "1",
    )
    request = small_request(Path(model), tuple(parts.split(",")))
    config = model_config(model)
    settings = deepspeed_config(options, torch.bfloat16)
    settings["zero_optimization"]["reduce_bucket_size"] = BUCKET
    with LiveMemory(shapes=False) as memory:
        import deepspeed
        from deepspeed.ops import __compatible_ops__

        __compatible_ops__["deepspeed_shm_comm"] = False
        network, _ = build(config, request, "cpu")
        inner = make_optimizer(options, groups(network, options), process.device)
        if optimizer == "adamw":  # as on CUDA, where it is the default
            for group in inner.param_groups:
                group["foreach"] = True
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        engine, *_ = deepspeed.initialize(model=network, optimizer=inner, config=settings)
        before = memory.live
        inputs = make_inputs(config, request, "cpu")
        peaks = train(engine, inputs, memory, int(accumulation), memory.live - before)
    Path(out).write_text(json.dumps(peaks))
    engine.destroy()


def train(engine, inputs, memory: LiveMemory, accumulation: int, inputs_bytes: int) -> dict[str, int]:
    """Two optimiser steps; the highest live bytes in each phase without the inputs."""
    peaks = dict.fromkeys(("forward", "backward", "optimizer step"), 0)

    def took(phase: str) -> None:
        peaks[phase] = max(peaks[phase], memory.peak - inputs_bytes)
        memory.restart_peak()

    for _ in range(2 * accumulation):
        memory.restart_peak()
        loss = engine(**inputs, want_logits=False).loss
        took("forward")
        engine.backward(loss)
        del loss
        took("backward")
        engine.step()
        took("optimizer step")
    return peaks


if __name__ == "__main__":
    main()
