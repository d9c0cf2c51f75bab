"""NaVILA with made-up weights: contracts, and what pins its definition."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.navila.agent import NaVILAAgent
from agents.navila.options import FAMILY, NaVILAOptions, NaVILATraining
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
        return NaVILATraining(checkpoint="preset:navila-tiny", out=folder / "out", trajectories=sets, history=2)


class TestAgent(AgentConformance):
    steps = 10  # two more than the frames that a question shows
    does_not_count = frozenset({"dtype", "trust_pickle"})  # auto is float32 here

    @pytest.fixture(autouse=True)
    def _checkpoint(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = base
        monkeypatch.setattr(NaVILAAgent, "read", by_tokens)

    def make_agent(self) -> NaVILAAgent:
        return NaVILAAgent(self.make_options(NaVILAAgent))

    def make_options(self, kind: type) -> NaVILAOptions:
        return NaVILAOptions(checkpoint=self.base, max_new_tokens=4, device="cpu")
