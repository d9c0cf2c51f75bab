from __future__ import annotations

from collections.abc import Iterator

import pytest

from agents.remote import RemoteAgent
from agents.rules import WanderAgent
from agents.scripted import RandomAgent
from tests.served import connected, serving
from vlnbench.conformance import AgentConformance


class TestRandomElsewhere(AgentConformance):
    agent = RandomAgent

    @pytest.fixture(autouse=True)
    def _serve(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("VLNBENCH_TOKEN", "any")  # or the one of the user would be looked up
        with serving(self.agent()) as self.address:
            yield

    def make_agent(self) -> RemoteAgent:
        return connected(self.address)


class TestWanderElsewhere(TestRandomElsewhere):
    agent = WanderAgent  # type: ignore[assignment]
