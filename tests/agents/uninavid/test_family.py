"""Uni-NaVid with made-up weights: contracts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agents.uninavid.agent import UniNaVidAgent
from agents.uninavid.options import FAMILY, UniNaVidOptions, UniNaVidTraining
from tests.agents.readable import by_tokens
from tests.training.test_families import write_walks
from vlnbench.conformance import AgentConformance, FamilyConformance
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.options import TrainOptions


class TestFamily(FamilyConformance):
    def make_spec(self) -> FamilySpec:
        return FAMILY

    def make_options(self, folder: Path) -> TrainOptions:
        sets = write_walks(folder / "sets", "R2R")
        return UniNaVidTraining(checkpoint="preset:uninavid-tiny", out=folder / "out", trajectories=sets)

    def make_walk_options(self, options: TrainOptions) -> TrainOptions:
        return replace(options, augment=False)


class TestAgent(AgentConformance):
    does_not_count = frozenset({"dtype", "trust_pickle"})  # auto is float32 here

    @pytest.fixture(autouse=True)
    def _checkpoint(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = base
        monkeypatch.setattr(UniNaVidAgent, "read", by_tokens)

    def make_agent(self) -> UniNaVidAgent:
        return UniNaVidAgent(self.make_options(UniNaVidAgent))

    def make_options(self, kind: type) -> UniNaVidOptions:
        return UniNaVidOptions(checkpoint=self.base, max_new_tokens=4, device="cpu")
