"""A training whose encoders tell what frames show, on walks and views at once, killed and gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.agents.questions import write_questions, write_semantics
from tests.agents.vlnce.walks import write_walks
from tests.training.driver import kill_after, log_of, run_all

pytestmark = pytest.mark.slow


def request(root: Path, out: Path, **changes: Any) -> dict[str, Any]:
    return {
        "family": "vlnce",
        "checkpoint": "preset:cma-tiny",
        "trajectories": root,
        "sets": ["R2R", "Questions"],
        "semantic_weight": 5.0,
        "packed": root / "packed",
        "learning_rate": 1e-2,
        "out": out,
        "batch": 2,
        "steps": 30,
        "log_every": 1,
        "save_every": 2,
        "workers": 0,
        **changes,
    }


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sets")
    write_walks(root, "R2R")
    write_semantics(write_questions(root / "Questions", 12))
    return root


def weights(out: Path) -> bytes:
    return (out / "model" / "model.safetensors").read_bytes()


@pytest.mark.long
def test_killed_it_goes_on_byte_equal(sets: Path, tmp_path: Path) -> None:
    stopped, whole = (request(sets, tmp_path / name) for name in ("stopped", "whole"))
    kill_after(stopped, 2)
    assert not (tmp_path / "stopped" / "model").exists()
    run_all([stopped, whole])
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_what_it_tells_is_learned_by_the_encoders_of_every_process(sets: Path, tmp_path: Path) -> None:
    views = {"sets": ["Questions"]}
    with_it, without = request(sets, tmp_path / "with", **views), request(sets, tmp_path / "without", **views)
    run_all([with_it, {**without, "semantic_weight": 0.0}], processes=2)
    first, last = (log_of(tmp_path / "with")[i]["loss"] for i in (0, -1))
    assert last < first / 2
    assert weights(tmp_path / "with") != weights(tmp_path / "without")
