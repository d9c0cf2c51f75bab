from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from vlnbench.matrix import runner
from vlnbench.matrix.work import folder as work
from vlnbench.matrix.work import stages
from vlnbench.util import machine

FAKE = str(Path(__file__).with_name("fake.py"))
PLAN: dict[str, Any] = {"gpus": "1x80GB", "steps": 4, "peak": 2 * 10**9, "low": 10**9, "high": 3 * 10**9}
PARTS = ("mm_vision_tower", "mm_mlp_adapter", "mm_language_model")

Write = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a trajectory set."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets" / "R2R").mkdir(parents=True)
    (tmp_path / "sets" / "R2R" / "annotations.json").write_text("[]")
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Write:
    """Writes a matrix file: a small one, with the sections that are given in place of its own."""

    def write(**sections: Any) -> Path:
        content = {
            "name": "small",
            "train": {"checkpoint": "preset:streamvln-tiny", "trajectories": "sets", "steps": 4},
            "references": [],
            "axes": {"tunable_parts": [[PARTS[0]], [PARTS[1]], [PARTS[2]]]},
            **sections,
        }
        path = folder / "matrix.yaml"
        content = {key: value for key, value in content.items() if value is not None}
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    return write


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that do nothing but leave records, no GPU, and plans made without a model."""
    monkeypatch.setattr(stages, "PROGRAM", (FAKE,))
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(runner, "plan_matrix", plan_all)


def plan_all(matrix: Any, folder: Path, gpu: str | None) -> dict[str, Any]:
    """The same plan for every setting; what trains the vision tower does not fit, where that is asked."""
    plans = {}
    for setting in matrix.settings:
        fits = None if gpu is None else "no" if PARTS[0] in setting.train.parts else "yes"
        plans[setting.train_key] = {**PLAN, "fits": fits}
    work.write_json(folder / work.PLANS, plans)
    return plans
