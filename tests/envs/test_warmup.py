from __future__ import annotations

import pytest

from envs.embedded import warmup
from envs.embedded.warmup import WarmUp


def test_a_failing_compilation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "_locked", lambda file: True)  # whoever else may be compiling
    compiling = WarmUp(renderer=False)
    monkeypatch.setattr(compiling, "_pending", ["envs.no_such_package"])
    assert compiling.needed
    with pytest.raises(RuntimeError, match=r"compiling envs\.no_such_package ended with exit code 1"):
        list(compiling.steps())


def test_compiled_packages_are_remembered() -> None:
    first = WarmUp(renderer=True)
    labels = list(first.steps())
    assert bool(labels) == first.needed
    assert not WarmUp(renderer=True).needed
    assert warmup._marker("envs.embedded.render").exists()
