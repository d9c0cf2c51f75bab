from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.wrong_agents import CORRECT, WRONG
from vlnbench.conformance import AgentConformance


def failures(kind: type) -> list[str]:
    """The conformance tests that an agent fails."""
    tests: Any = type("Tests", (AgentConformance,), {"make_agent": lambda self: kind()})()
    found = []
    for name in dir(tests):
        if name.startswith("test_"):
            try:
                getattr(tests, name)()
            except (AssertionError, AttributeError):
                found.append(name)
    return found


@pytest.mark.parametrize("kind", CORRECT, ids=lambda kind: kind.__name__)
def test_a_correct_agent_passes(kind: type) -> None:
    assert failures(kind) == []


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_agent_is_found(kind: type) -> None:
    assert failures(kind)
