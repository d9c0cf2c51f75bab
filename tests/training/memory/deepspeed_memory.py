"""Two optimizer steps of a small StreamVLN under DeepSpeed on the CPU, with every live byte counted.

Arguments: model folder, settings (a JSON list), elements of a reduce bucket, file for the peaks. The launcher's
variables say how many processes take part.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
os.environ["DS_ACCELERATOR"] = "cpu"

from agents.streamvln.options import FAMILY, StreamVLNTraining
from tests.families import Whole
from tests.training.geometry import config_of, small_request
from vlnbench.training.deepspeed_file import deepspeed_config
from vlnbench.training.memory.trace import build
from vlnbench.training.memory.tracker import LiveMemory
from vlnbench.training.setup import find_process, make_optimizer


def main() -> None:
    model, runs, bucket, out = sys.argv[1:]
    torch.set_num_threads(1)
    found = [run(Path(model), int(bucket), **setting) for setting in json.loads(runs)]
    Path(out).write_text(json.dumps(found))


def run(
    model: Path,
    bucket: int,
    stage: int,
    accumulation: int,
    parts: list[str],
    optimizer: str,
    offload_optimizer: bool,
    overlap: bool = False,
) -> dict[str, int]:
    """Peaks by moment of one setting."""
    process = find_process()
    options = StreamVLNTraining(
        checkpoint=str(model),
        out=model,
        tunable_parts=tuple(parts),
        zero=stage,
        accumulation=accumulation,
        optimizer=optimizer,  # type: ignore[arg-type]
        offload_optimizer=offload_optimizer,
    )
    request = small_request(model, tuple(parts))
    config, family = config_of(str(model)), Whole(FAMILY)
    settings = deepspeed_config(options, torch.bfloat16)
    settings["zero_optimization"] |= {"reduce_bucket_size": bucket, "overlap_comm": overlap or stage == 3}
    with LiveMemory(shapes=False) as memory:
        import deepspeed
        from deepspeed.ops import __compatible_ops__

        __compatible_ops__["deepspeed_shm_comm"] = False
        network, trained = build(family, family, config, request, "cpu")
        inner = make_optimizer(options, trained, process.device)
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        engine, *_ = deepspeed.initialize(model=network, optimizer=inner, config=settings)
        before = memory.live
        inputs = family.probe(config, request, "cpu").batch
        peaks = train(engine, inputs, memory, accumulation, memory.live - before)
    engine.destroy()
    return peaks


def settle() -> None:
    """Let go of what nobody needs: cycles of objects, and buffers that gloo's thread holds when it is done."""
    gc.collect()
    torch.distributed.barrier()
    time.sleep(0.2)


def train(engine, inputs, memory: LiveMemory, accumulation: int, inputs_bytes: int) -> dict[str, int]:
    """Two optimizer steps; the highest live bytes in each phase without the inputs."""
    peaks = dict.fromkeys(("forward", "backward", "optimizer step"), 0)

    def took(phase: str) -> None:
        peaks[phase] = max(peaks[phase], memory.peak - inputs_bytes)
        settle()
        memory.restart_peak()

    settle()
    gc.freeze()  # what is there by now is not looked through again
    memory.restart_peak()
    for _ in range(2 * accumulation):
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
