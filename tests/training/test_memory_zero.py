"""The plan's ledger of DeepSpeed: against the published table's formula and against DeepSpeed itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.geometry import small_request, write_small
from vlnbench.training.memory_trace import trace
from vlnbench.training.memory_zero import Sharding, Usage, owned_elements, static_bytes, usages
from vlnbench.training.options import PARTS
from vlnbench.training.plan import PROCESS_BYTES, host_bytes

VISION, PROJECTOR, LANGUAGE = 397_747_744, 16_980_992, 7_615_616_512
TABLE = {
    VISION + PROJECTOR + LANGUAGE: ((128.5, 72.3, 44.2, 30.1, 19.6), (128.5, 64.2, 32.1, 16.1, 4.0)),
    PROJECTOR + LANGUAGE: ((122.9, 69.5, 42.8, 29.4, 19.4), (122.9, 61.5, 30.7, 15.4, 3.8)),
    VISION + PROJECTOR: ((21.9, 19.0, 17.5, 16.8, 16.2), (21.9, 10.9, 5.5, 2.7, 0.7)),
    PROJECTOR: ((16.3, 16.2, 16.1, 16.1, 16.1), (16.3, 8.1, 4.1, 2.0, 0.5)),
}
"""Trainable parameters -> GB per GPU under ZeRO 2 and 3 on 1, 2, 4, 8 and 32 GPUs."""


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
    traced = trace(small_request(write_small(tmp_path), PARTS))
    found = list(usages(traced, Sharding(stage, ranks, 1, "adamw", bucket=10_000)))
    step = next(usage for usage in found if usage.moment == "optimizer step")
    least = static_bytes(traced.parameters, traced.trainable, stage, ranks)
    if stage == 1:  # the table keeps all gradients, which have been reduced by then
        least -= 2 * traced.trainable * (1 - 1 / ranks)
    assert least <= step.static + step.gradients <= least + 4 * 2 * traced.largest
    if ranks == 1:
        assert step.static + step.gradients == least


def test_the_rank_with_the_most_counts(tmp_path: Path) -> None:
    traced = trace(small_request(write_small(tmp_path), PARTS))
    assert sum(owned_elements(traced, 1)) == traced.trainable
    assert traced.trainable / 2 <= sum(owned_elements(traced, 2)) <= traced.trainable / 2 + traced.largest * 4


def highest(found: list[Usage]) -> dict[str, int]:
    return {
        moment: max((usage.total for usage in found if usage.moment == moment), default=0)
        for moment in ("forward", "backward", "optimizer step")
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "accumulation", "parts", "optimizer"),
    [
        (0, 2, PARTS, "adamw"),
        (1, 2, PARTS, "adamw"),
        (2, 1, PARTS, "adamw"),
        (2, 2, PARTS, "adamw"),
        (3, 2, PARTS, "adamw"),
        (2, 2, PARTS[:2], "adamw"),
        (0, 1, PARTS, "adafactor"),
    ],
)
def test_ledger_is_what_deepspeed_allocates(
    tmp_path: Path, stage: int, accumulation: int, parts: tuple[str, ...], optimizer: str
) -> None:
    """DeepSpeed's engine on the CPU, every live byte counted, at every moment of the step."""
    found = run_deepspeed(tmp_path, stage, accumulation, parts, optimizer=optimizer)
    traced = trace(small_request(tmp_path / "model", parts))
    planned = highest(list(usages(traced, Sharding(stage, 1, accumulation, optimizer, bucket=60_000))))
    for moment, size in planned.items():
        assert size == pytest.approx(found[moment], rel=0.02), moment


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "accumulation"), [(2, 1), (2, 2), (3, 2)])
def test_offloaded_states_are_in_the_plan_of_the_host(tmp_path: Path, stage: int, accumulation: int) -> None:
    """On the CPU host and device are one: the plans' sum must be there while the optimiser steps."""
    found = run_deepspeed(tmp_path, stage, accumulation, PARTS, offload=True)
    traced = trace(small_request(tmp_path / "model", PARTS))
    sharding = Sharding(stage, 1, accumulation, "adamw", offload_optimizer=True, bucket=60_000)
    device = highest(list(usages(traced, sharding)))["optimizer step"]
    host = host_bytes(traced.parameters, traced.trainable, sharding) - PROCESS_BYTES
    assert device + host == pytest.approx(found["optimizer step"], rel=0.06)


def run_deepspeed(
    tmp_path: Path,
    stage: int,
    accumulation: int,
    parts: tuple[str, ...],
    *,
    optimizer: str = "adamw",
    offload: bool = False,
) -> dict[str, int]:
    pytest.importorskip("deepspeed")
    folder = write_small(tmp_path / "model")
    arguments = [str(folder), str(stage), str(accumulation), ",".join(parts), optimizer, str(int(offload))]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("deepspeed_memory.py")
    result = subprocess.run(
        [sys.executable, str(script), *arguments, str(tmp_path / "found.json")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return dict(json.loads((tmp_path / "found.json").read_text()))
