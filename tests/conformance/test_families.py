from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents.qwen_vl.options import QwenVLTraining
from tests.conformance.wrong_families import WRONG
from tests.training.workshop import write_walks
from vlnbench.conformance import FamilyConformance
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.options import TrainOptions


class _Family(FamilyConformance):
    def __init__(self, spec: FamilySpec) -> None:
        self.spec = spec

    def make_spec(self) -> FamilySpec:
        return self.spec

    def make_options(self, folder: Path) -> TrainOptions:
        write_walks(folder / "sets/R2R", [6])
        shown: dict[str, Any] = {"history": 2, "max_pixels": 12_544, "actions_per_answer": 2}
        return QwenVLTraining(
            checkpoint="preset:qwen-vl-tiny", out=folder / "out", trajectories=folder / "sets", **shown
        )


@pytest.mark.parametrize(("spec", "test", "said"), WRONG)
def test_a_wrong_family_is_found(spec: FamilySpec, test: str, said: str, tmp_path: Path) -> None:
    """That correct ones pass is tested where they are."""
    with pytest.raises(AssertionError, match=said):
        getattr(_Family(spec), test)(tmp_path)
