"""What a matrix will need is planned before its checkpoint and its data are there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.matrix.conftest import Write
from vlnbench.matrix.plans import format_plans, make_plans
from vlnbench.matrix.spec import Matrix, read_matrix


@pytest.fixture
def absent(write: Write) -> Any:
    """A matrix of a checkpoint that is not there, on sets that will be collected."""

    def make(family: str, part: str, **run: Any) -> Matrix:
        train = {"family": family, "checkpoint": "checkpoints/none", "trajectories": "elsewhere"}
        collect = {"R2R": {"set": "r2r"}}
        axes = {"tunable_parts": [[part]]}
        return read_matrix(write(train=train, collect=collect, axes=axes, run={"gpus_per_setting": 8, **run}))

    return make


def test_a_checkpoint_that_is_not_there_is_planned_by_published_sizes(absent: Any) -> None:
    matrix = absent("streamvln", "mm_mlp_adapter", gpu="80GB")
    (planned,) = make_plans(matrix, matrix.execution.gpu).values()
    assert planned["peak"] == pytest.approx(22.0e9, rel=0.01)
    assert (planned["fits"], planned["planned_as"]) == ("yes", "streamvln-8b")
    shown = format_plans(matrix, {matrix.settings[0].train_key: planned}, {})
    assert "planned by the published sizes streamvln-8b, as the checkpoint is not there" in shown
    assert "no steps: elsewhere/R2R/annotations.json: not there" in shown
    assert "hours: not computed without run.tflops" in shown
    assert "no GPU here" not in shown


def test_of_several_sizes_one_is_named(absent: Any) -> None:
    matrix = absent("janusvln", "mm_mlp")
    (planned,) = make_plans(matrix, None).values()
    assert planned["peak"] is None
    assert "checkpoints/none is not there" in planned["error"]
    assert "run: {plan_as: NAME}, one of janusvln-7b, janusvln-3b" in planned["error"]
    matrix = absent("janusvln", "mm_mlp", plan_as="janusvln-9b")
    (planned,) = make_plans(matrix, None).values()
    assert planned["error"].startswith("run.plan_as janusvln-9b: no such file or folder")
