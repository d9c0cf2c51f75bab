"""Files of `--deepspeed`: those of published programs are taken over, and nothing in one passes unread."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from agents.streamvln.options import StreamVLNPlanning
from vlnbench.errors import UsageError
from vlnbench.training.deepspeed_file import deepspeed_config
from vlnbench.training.memory.plan import Plan, plan, sharding
from vlnbench.training.memory.zero import BUCKET
from vlnbench.training.options import TrainOptions

pytestmark = pytest.mark.needs("deepspeed")

ZERO = "zero_optimization"
CPU = {"device": "cpu"}
PUBLISHED: dict[str, Any] = {
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16},
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
    "gradient_accumulation_steps": "auto",
}
ZERO2 = {"stage": 2, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9}
ZERO3 = {
    "stage": 3,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": True,
}


def settings(tmp_path: Path, content: Any, **options: Any) -> dict[str, Any]:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(content))
    train = TrainOptions(checkpoint="", out=tmp_path, deepspeed=path, **options)
    return deepspeed_config(train, torch.bfloat16)


@pytest.mark.parametrize("zero", [ZERO2, ZERO3])
def test_published_files_are_taken_over(tmp_path: Path, zero: dict[str, Any]) -> None:
    found = settings(tmp_path, {**PUBLISHED, "zero_optimization": zero}, zero=zero["stage"])
    expected = {key: value for key, value in zero.items() if value != "auto"}
    assert found["zero_optimization"] == expected
    assert found["bf16"] == {"enabled": True}


@pytest.mark.parametrize(
    ("content", "zero", "message"),
    [
        ({"zero_optimisation": {}}, 2, "unknown key 'zero_optimisation': did you mean 'zero_optimization'"),
        ({"activation_checkpointing": {}}, 2, "activation_checkpointing: has no effect here"),
        ({"optimizer": {"type": "AdamW"}}, 2, "optimizer: would override the learning rates of the parts"),
        ({"fp16": {"enabled": True}}, 2, "fp16.enabled true contradicts --dtype"),
        ({ZERO: {"overlap_com": True}}, 2, ZERO + ".overlap_com: Extra inputs are not"),
        (
            {ZERO: {"offload_param": CPU}},
            2,
            ZERO + ".offload_param: works with --zero 3 alone",
        ),
        (
            {ZERO: {"offload_optimizer": CPU}},
            0,
            ZERO + ".offload_optimizer: works from --zero 1",
        ),
        (
            {ZERO: {"offload_optimizer": {"device": "cpu", "pinned": True}}},
            2,
            ZERO + ".offload_optimizer.pinned: Extra inputs are not permitted",
        ),
        (
            {ZERO: {"stage": 3}},
            2,
            ZERO + ".stage 3 contradicts the options, which make it 2",
        ),
        (
            {ZERO: {"reduce_bucket_size": -1}},
            2,
            ZERO + ".reduce_bucket_size: Input should",
        ),
        ([1], 2, "expected a JSON object"),
    ],
)
def test_what_would_pass_unread_is_named(tmp_path: Path, content: Any, zero: int, message: str) -> None:
    with pytest.raises(UsageError, match=rf"--deepspeed .*ds\.json: {re.escape(message)}"):
        settings(tmp_path, content, zero=zero)


def usage(tmp_path: Path, block: Any, **options: Any) -> Plan:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**PUBLISHED, ZERO: block}))
    return plan(StreamVLNPlanning(model="preset:streamvln-tiny", deepspeed=path, **options))


def test_a_plan_is_by_what_the_file_says(tmp_path: Path) -> None:
    """As by options of the same meaning; buckets, which no option says, are as large as there."""
    offloaded = StreamVLNPlanning(
        model="preset:streamvln-tiny", zero=3, offload_optimizer=True, offload_parameters=True
    )
    both = {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}
    assert usage(tmp_path, both, zero=3).usage == plan(offloaded).usage
    found = [
        sharding(usage(tmp_path, {"stage": 2, "reduce_bucket_size": 1e6, "overlap_comm": on}).request)
        for on in (False, True)
    ]
    assert [each.bucket_bytes for each in found] == [2e6, 4e6]
    some = {"stage": 3, "stage3_max_live_parameters": 1e6, "sub_group_size": 2e6}
    three = sharding(usage(tmp_path, some, zero=3).request)
    assert (three.live, three.sub_group, three.bucket, three.overlap) == (1e6, 2e6, BUCKET, False)


@pytest.mark.parametrize(
    ("zero", "options", "message"),
    [
        ({"stage": 3}, {}, ZERO + ".stage 3 contradicts the options, which make it 2"),
        ({"contiguous_gradients": False}, {}, ZERO + ".contiguous_gradients: is not planned"),
        ({"offload_optimizer": {"device": "nvme"}}, {}, ZERO + ".offload_optimizer: is not planned"),
        ({"stage": 1, "overlap_comm": True}, {"zero": 1}, ZERO + ".overlap_comm with --zero 1: is not planned"),
        ({}, {"as_published": True}, "--as-published: has a DeepSpeed file of its own"),
    ],
)
def test_what_a_plan_cannot_take_from_a_file_is_named(
    tmp_path: Path, zero: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        usage(tmp_path, zero, **options)
