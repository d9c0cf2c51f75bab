"""The plan's ledger of DeepSpeed: against the published table's formula and against DeepSpeed itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agents.streamvln.options import PARTS
from tests.training.geometry import small_request, traced, write_small
from vlnbench.training.memory.plan import PROCESS_BYTES, host_bytes
from vlnbench.training.memory.zero import Sharding, Usage, owned_elements, usages

BUCKET = 60_000
"""Elements of a reduce bucket: fewer than some tensors have, as with the default and the full-size network."""

VISION, PROJECTOR, LANGUAGE = 397_747_744, 16_980_992, 7_615_616_512
TABLE = {
    VISION + PROJECTOR + LANGUAGE: ((128.5, 72.3, 44.2, 30.1, 19.6), (128.5, 64.2, 32.1, 16.1, 4.0)),
    PROJECTOR + LANGUAGE: ((122.9, 69.5, 42.8, 29.4, 19.4), (122.9, 61.5, 30.7, 15.4, 3.8)),
    VISION + PROJECTOR: ((21.9, 19.0, 17.5, 16.8, 16.2), (21.9, 10.9, 5.5, 2.7, 0.7)),
    PROJECTOR: ((16.3, 16.2, 16.1, 16.1, 16.1), (16.3, 8.1, 4.1, 2.0, 0.5)),
}
"""Trainable parameters -> GB per GPU under ZeRO 2 and 3 on 1, 2, 4, 8 and 32 GPUs."""


def static_bytes(parameters: int, trainable: int, stage: int, ranks: int) -> float:
    """Weights, gradients and AdamW's states per GPU by the usual formula, without anything that comes and goes.

    2 bytes per parameter (ZeRO 3: divided by the GPUs), 2 per gradient (divided from ZeRO 2 on), 12 of master copy
    and moments (divided from ZeRO 1 on).
    """
    return (
        2 * parameters / (ranks if stage == 3 else 1)
        + 2 * trainable / (ranks if stage >= 2 else 1)
        + 12 * trainable / (ranks if stage >= 1 else 1)
    )


@pytest.mark.parametrize("trainable", TABLE)
def test_static_part_is_the_usual_table(trainable: int) -> None:
    total = VISION + PROJECTOR + LANGUAGE
    for stage, row in zip((2, 3), TABLE[trainable], strict=True):
        found = [round(static_bytes(total, trainable, stage, ranks) / 1e9, 1) for ranks in (1, 2, 4, 8, 32)]
        assert found == list(row)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_ledger_holds_the_static_part(tmp_path: Path, stage: int, ranks: int) -> None:
    """Weights, states and gradients of one pass. Gradients at a cut are kept on both sides, so some are extra."""
    passed = traced(small_request(write_small(tmp_path), PARTS))
    found = list(usages(passed, Sharding(stage, ranks, 1, "adamw", bucket=10_000)))
    step = next(usage for usage in found if usage.moment == "optimizer step")
    least = static_bytes(passed.parameters, passed.trainable, stage, ranks)
    if stage == 1:  # the table keeps all gradients, which have been reduced by then
        least -= 2 * passed.trainable * (1 - 1 / ranks)
    assert least <= step.static + step.gradients <= least + 4 * 2 * passed.largest
    if ranks == 1:
        assert step.static + step.gradients == least


def test_the_rank_with_the_most_counts(tmp_path: Path) -> None:
    passed = traced(small_request(write_small(tmp_path), PARTS))
    assert sum(owned_elements(passed, 1)) == passed.trainable
    assert passed.trainable / 2 <= sum(owned_elements(passed, 2)) <= passed.trainable / 2 + passed.largest * 4


def highest(found: list[Usage]) -> dict[str, int]:
    return {
        moment: max((usage.total for usage in found if usage.moment == moment), default=0)
        for moment in ("forward", "backward", "optimizer step")
    }


def setting(stage: int, accumulation: int, **changes: Any) -> dict[str, Any]:
    plain = {"optimizer": "adamw", "parts": PARTS, "offload_optimizer": False}
    return {"stage": stage, "accumulation": accumulation, **plain, **changes}


RUNS = {
    1: [
        setting(0, 2),
        setting(1, 2),
        setting(2, 1),
        setting(2, 2),
        setting(2, 2, overlap=True),
        setting(2, 2, parts=PARTS[:2]),
        setting(0, 1, optimizer="adafactor"),
        setting(0, 1, optimizer="muon"),
        setting(2, 1, offload_optimizer=True),
        setting(2, 2, offload_optimizer=True),
        setting(3, 2),
        setting(3, 2, offload_optimizer=True),
    ],
    2: [setting(0, 1, optimizer="muon"), setting(1, 2), setting(2, 1), setting(2, 2), setting(3, 2)],
}
"""Settings by number of processes. ZeRO 3 comes last: it replaces torch's linear function for good."""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("ranks", RUNS)
def test_ledger_is_what_deepspeed_allocates(tmp_path: Path, ranks: int) -> None:
    """DeepSpeed's engine on the CPU, every live byte counted, at every moment of the step, on the worst rank.

    On the CPU host and device are one: where states are offloaded, weights, buffers and the host's plan add up.
    With several processes more was now and then found, up to a bucket of gradients and its copy in float32: that
    much is allowed, as what runs beside these processes decides when a collective's buffers go.
    """
    pytest.importorskip("deepspeed")
    folder = write_small(tmp_path / "model")
    for run, found in zip(RUNS[ranks], run_deepspeed(tmp_path, folder, ranks), strict=True):
        passed = traced(small_request(folder, run["parts"]))
        options = {name: value for name, value in run.items() if name != "parts"}
        sharding = Sharding(ranks=ranks, bucket=BUCKET, **options)
        usage = list(usages(passed, sharding))
        if sharding.offload_optimizer:
            host = host_bytes(passed, sharding) - PROCESS_BYTES
            planned = {"optimizer step": usage[-1].weights + usage[-1].buffers + host}
        else:
            planned = highest(usage)
        for moment, size in planned.items():
            late = BUCKET * (2 + 4) if ranks > 1 else 0
            assert 0.98 * (found[moment] - late) <= size <= 1.02 * found[moment], (run, moment)


def run_deepspeed(tmp_path: Path, folder: Path, ranks: int) -> list[dict[str, int]]:
    """Peaks of every run, by moment, of the process that took the most."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = Path(__file__).with_name("deepspeed_memory.py")
    outs = [tmp_path / f"{rank}.json" for rank in range(ranks)]
    processes = []
    for rank, out in enumerate(outs):
        launcher = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
        environment = os.environ | {name: str(value) for name, value in launcher.items()}
        environment |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(script), str(folder), json.dumps(RUNS[ranks]), str(BUCKET), str(out)]
        with out.with_suffix(".log").open("w") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        for process, out in zip(processes, outs, strict=True):
            assert process.wait(timeout=900) == 0, out.with_suffix(".log").read_text()[-2000:]
    finally:
        for process in processes:
            process.kill()
    found = [json.loads(out.read_text()) for out in outs]
    return [
        {moment: max(peaks[moment] for peaks in each) for moment in each[0]} for each in zip(*found, strict=True)
    ]
