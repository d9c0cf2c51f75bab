from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

WITHOUT_HABITAT_SIM = pytest.mark.skipif(find_spec("habitat_sim") is not None, reason="habitat-sim is installed")
ROOT = Path(__file__).parents[2]


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)


@WITHOUT_HABITAT_SIM
def test_habitat_lab_imports_without_pretending_that_habitat_sim_is_there() -> None:
    result = run(
        """
import sys
from envs.habitat_lab import import_habitat
habitat = import_habitat()
false_friends = [n for n in sys.modules if n.split(".")[0] in ("habitat_sim", "magnum", "corrade")]
placeholders = ("object_state_machine", "env_batch_renderer")
left_over = [n for n in sys.modules if n.startswith("habitat.tasks.rearrange") or n.endswith(placeholders)]
print(false_friends, left_over)
from habitat.core.registry import registry
assert registry.get_task("VLN-v0") and registry.get_dataset("R2RVLN-v1") and registry.get_measure("TopDownMap")
try:
    registry.get_simulator("Sim-v0")()
except ImportError as error:
    print(error)
"""
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["[] []", "No module named 'habitat_sim'"]
    assert result.stderr == ""


@WITHOUT_HABITAT_SIM
def test_asking_for_habitat_sim_says_how_to_get_it() -> None:
    from envs.backends import choose_backend
    from vlnbench.errors import UsageError

    with pytest.raises(UsageError, match="habitat-sim is not installed; install it with conda"):
        choose_backend("habitat-sim")
    assert choose_backend("auto").name.startswith("embedded")


def test_an_opencv_without_its_system_library_is_done_without(tmp_path: Path) -> None:
    """The package puts its folder at the head of the path before it loads its library; a `typing` lies there."""
    folder = tmp_path / "cv2"
    folder.mkdir()
    begin = "import sys; sys.path.insert(0, __path__[0])"
    (folder / "__init__.py").write_text(
        f"{begin}\nraise ImportError('libGL.so.1: cannot open shared object file')"
    )
    (folder / "typing.py").write_text("raise ImportError('hides that of Python')")
    code = """
import subprocess, sys
from envs.habitat_lab import import_habitat
import_habitat()
from habitat.utils.visualizations import maps
print("cv2" in sys.modules)
child = f"import sys; sys.path[:] = {sys.path!r}; from typing import Any"
subprocess.run([sys.executable, "-c", child], check=True)
try:
    maps.cv2.circle
except ImportError as error:
    print(error)
"""
    result = run(code, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    kept, line = result.stdout.splitlines()
    assert kept == "False"  # whoever imports it later meets its own error
    assert line.startswith("habitat-lab draws with OpenCV, which cannot be loaded (libGL.so.1")
    assert "opencv-python-headless" in line
