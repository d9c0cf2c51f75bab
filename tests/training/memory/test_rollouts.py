from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agents.janusvln.options import JanusVLNPlanning
from agents.streamvln.options import PARTS, StreamVLNPlanning
from tests.training.rewarded import planned as of_rewards
from vlnbench.errors import UsageError
from vlnbench.training.memory.plan import Plan, plan
from vlnbench.training.memory.report import format_plan
from vlnbench.training.memory.search import changes

COMMON: dict[str, Any] = {"model": "preset:streamvln-tiny", "gpus": "2x8GB", "batch": 4, "accumulation": 2}


def rewards(**changes: Any) -> Plan:
    return plan(of_rewards(StreamVLNPlanning)(**{**COMMON, "objective": "grpo", "group": 4, **changes}))


def test_the_reference_is_a_copy_of_the_weights_where_there_is_one() -> None:
    without, held = rewards(), rewards(beta=0.04)
    count = sum(held.parts.values())
    assert without.usage.reference == 0
    assert held.usage.reference == 2 * count
    assert held.usage.static == without.usage.static + 2 * count
    assert rewards(beta=0.04, zero=3).usage.reference == 2 * count, "whole with any stage"
    assert rewards(beta=0.04, tunable_parts=(), lora_rank=4).usage.reference == 0, "the network without adapters"
    assert rewards(beta=0.04, tunable_parts=(PARTS[1],), lora_rank=4).usage.reference > 0


def test_the_reference_beside_adapters_is_what_else_trains() -> None:
    """JanusVLN's output layer can train with no part."""
    given = {"tunable_parts": (), "lora_rank": 4, "train_head": True, "group": 4, "batch": 4, "accumulation": 1}
    chosen = of_rewards(JanusVLNPlanning)(
        **{**COMMON, "model": "preset:janusvln-tiny", "objective": "grpo", **given}
    )
    held, without = plan(replace(chosen, beta=0.04)), plan(chosen)
    assert held.usage.reference == 2 * (held.trainable - held.parts["lora"]) > 0
    assert without.usage.reference == 0


def test_rollouts_are_a_moment_of_their_own() -> None:
    """Keys and values of all answers made at once: 2 x 4 layers x 2 heads x 32 numbers of 2 bytes each."""
    planned = rewards()
    position = 2 * 4 * 2 * 32 * 2
    weights = 2 * sum(planned.parts.values())
    assert planned.peaks["rollouts"] == weights + planned.usage.states + 2 * 8 * planned.tokens * position
    assert "rollouts" not in plan(StreamVLNPlanning(**COMMON)).peaks
    many = rewards(batch=40)
    assert many.peaks["rollouts"] == weights + many.usage.states + 2 * 16 * many.tokens * position, "16 at once"


def test_frames_of_rollouts_lie_in_the_memory_of_the_host() -> None:
    """Of a window 8 memory frames and one for each of its 8 turns, in single precision."""
    planned, supervised = rewards(), plan(StreamVLNPlanning(**COMMON))
    assert planned.host - supervised.host == 8 * 16 * 3 * 96 * 96 * 4


def test_the_units_of_an_update_are_said() -> None:
    text = format_plan(rewards())
    assert "grpo: 8 answers or walks per GPU, 16 in an update: 4 prompts with 4 each; 4 windows in" in text
    assert "reference (--beta)" in text
    assert "reference" not in format_plan(plan(StreamVLNPlanning(**COMMON)))


def test_beta_0_is_among_what_could_be_changed() -> None:
    held = of_rewards(StreamVLNPlanning)(**COMMON, objective="grpo", group=4, beta=0.04)
    assert "--beta 0" in [change.text for change in changes(held)]
    assert "--beta 0" not in [change.text for change in changes(StreamVLNPlanning(**COMMON))]


def test_settings_that_cannot_be() -> None:
    with pytest.raises(
        UsageError, match=r"--batch 3 x --accumulation 1 x 2 GPUs is 6 answers or walks per update"
    ):
        rewards(batch=3, accumulation=1)
    with pytest.raises(UsageError, match="--objective grpo: the options are not its own"):
        plan(StreamVLNPlanning(**COMMON, objective="grpo"))
    with pytest.raises(UsageError, match="unknown objective 'grop': did you mean 'grpo'"):
        rewards(objective="grop", group=8)
    with pytest.raises(UsageError, match="--group 1: expected 2 or more"):
        rewards(group=1)
