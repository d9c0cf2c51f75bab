from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from envs.embedded import warmup
from envs.embedded.warmup import WarmUp


def test_a_failing_compilation_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(warmup, "locked", nullcontext)  # whoever else may be compiling
    monkeypatch.setattr(warmup, "_marker", lambda _: tmp_path / "complete")
    compiling = WarmUp()
    monkeypatch.setattr(compiling, "_pending", ["envs.no_such_package"])
    assert compiling.needed
    with pytest.raises(RuntimeError, match=r"compiling envs\.no_such_package ended with exit code 1"):
        list(compiling.steps())


@pytest.mark.slow
def test_compiled_packages_are_remembered() -> None:
    first = WarmUp()
    labels = list(first.steps())
    assert bool(labels) == first.needed
    assert not WarmUp().needed
    assert warmup._marker("envs.embedded.render").exists()


@pytest.mark.slow
def test_a_script_without_a_guard_compiles(tmp_path: Path) -> None:
    """A process that began by running the script again would wait for itself; what the working folder holds under
    the simulator's name is not imported."""
    (tmp_path / "here/envs").mkdir(parents=True)
    (tmp_path / "here/envs/__init__.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/__init__.py").write_text('def warm_up():\n    yield "one"\n    yield "two"\n')
    script = tmp_path / "script.py"
    script.write_text(
        "from envs.embedded.warmup import WarmUp\n"
        "compiling = WarmUp()\n"
        'compiling._pending = ["toy"]\n'
        "print(*compiling.steps())\n"
    )
    env = {**os.environ, "VLNBENCH_CACHE": str(tmp_path / "cache")}
    run = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path / "here",
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout == "one two\n"
