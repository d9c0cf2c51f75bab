from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.wrong_agents import CORRECT, WRONG
from vlnbench.conformance import AgentConformance


def conformance(kind: type) -> Any:
    return type("Tests", (AgentConformance,), {"make_agent": lambda self: kind()})()


@pytest.mark.parametrize("kind", CORRECT, ids=lambda kind: kind.__name__)
def test_a_correct_agent_passes(kind: type) -> None:
    tests = conformance(kind)
    for name in dir(tests):
        if name.startswith("test_"):
            getattr(tests, name)()


@pytest.mark.parametrize(("kind", "test"), WRONG.items(), ids=[kind.__name__ for kind in WRONG])
def test_a_wrong_agent_is_found(kind: type, test: str) -> None:
    with pytest.raises((AssertionError, AttributeError)):
        getattr(conformance(kind), test)()
