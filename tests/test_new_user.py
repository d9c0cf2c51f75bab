"""What a user of the package meets: an empty folder, an environment of its own, the wheel, and no checkout.

The environment sees the libraries that are installed here, so that nothing is downloaded. An endless plane stands
for the simulator, which would be compiled anew in another place and takes minutes. With libraries and simulator
the same is tried by the job `wheel` of the workflow and by tests/containers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PLANE = """
from dataclasses import replace

import numpy as np
from fakes import PlaneEnv


class Plane(PlaneEnv):
    def __init__(self, body, scenes_dir, sensors, simulator):
        super().__init__()
        self.embodiment = body

    def _observe(self):
        return replace(super()._observe(), depth=np.ones((480, 640), dtype=np.float32))
"""
"""Of a module in the user's folder."""


@dataclass(frozen=True)
class User:
    """A user's environment and the folder that commands are run in."""

    venv: Path
    folder: Path

    def run(self, program: str, *arguments: str | Path) -> str:
        """Run a program of the environment; returns what it printed."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        command = [str(self.venv / "bin" / program), *map(str, arguments)]
        environment = {**kept, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, source: Path) -> None:
        """Install a wheel or a folder, without what it depends on."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.venv / "bin" / "python"), "install", "--quiet"]
        flags = ["--no-index", "--no-deps", "--no-build-isolation"]
        done = subprocess.run([*pip, *flags, str(source)], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def user(houses: Path, tmp_path_factory: pytest.TempPathFactory) -> User:
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    base = tmp_path_factory.mktemp("user")
    folder = base / "empty"
    folder.mkdir()
    (folder / "data").symlink_to(houses)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(base / "venv")], check=True)
    made = User(base / "venv", folder)
    shutil.copyfile(ROOT / "tests" / "fakes.py", folder / "fakes.py")
    (folder / "plane.py").write_text(PLANE)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(base / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (base / "dist").glob("*.whl")
    # A line of a .pth adds a folder, but not what other .pth files in it add: no editable install comes along.
    (site,) = (base / "venv" / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    made.install(wheel)
    return made


@pytest.mark.slow
def test_what_is_imported_is_the_wheel(user: User) -> None:
    code = "import agents, envs, vlnbench; print(*(each.__file__ for each in (agents, envs, vlnbench)), sep='\\n')"
    files = user.run("python", "-c", code).splitlines()
    assert len(files) == 3
    assert all(Path(each).is_relative_to(user.venv) for each in files)


@pytest.mark.slow
def test_a_run_is_made_shown_viewed_and_exported(user: User) -> None:
    """With an agent of a plug-in, installed beside the wheel."""
    user.install(ROOT / "examples" / "plugin")
    assert "left-hand" in user.run("vlnbench", "list")
    few = ("--split", "val_unseen", "--allow-partial", "--episodes", "4", "--envs", "1", "--env", "plane:Plane")
    out = user.run("vlnbench", "eval", "--agent", "left-hand", *few)
    assert "houses-r2r val_unseen: left-hand in plane-1" in out
    (run,) = (user.folder / "runs").glob("houses-r2r/val_unseen/left-hand-*")
    assert f"vlnbench report {run.relative_to(user.folder)}" in out
    user.run("vlnbench", "report", run, "--data-root", "nowhere")  # maps would need the simulator
    assert "<html" in (run / "report.html").read_text(encoding="utf-8")
    user.run("vlnbench", "view", "runs", "--data-root", "nowhere")
    assert "left-hand" in (user.folder / "view.html").read_text(encoding="utf-8")
    user.run("vlnbench", "export", run, "--format", "evalai-r2r", "--out", "paths.json", "--allow-partial")
    assert len(json.loads((user.folder / "paths.json").read_text())) == 4


@pytest.mark.slow
def test_the_notebook_runs_from_its_first_cell_to_its_last(user: User) -> None:
    """Its cells one after the other, as a kernel would: evaluate, an agent in a cell, compare, load, draw."""
    notebook = json.loads((ROOT / "examples" / "first_look.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], {cell["cell_type"] for cell in notebook["cells"]}) == (4, {"markdown", "code"})
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    fewer = [cell.replace("episodes=12", "episodes=4, allow_partial=True, env='plane:Plane'") for cell in cells]
    (user.folder / "cells.json").write_text(json.dumps(fewer))
    code = (
        "import json; names = {'__name__': 'notebook'}\n"
        "for cell in json.load(open('cells.json')): exec(compile(cell, 'cell', 'exec'), names)\n"
        "print(len(names['rows']), sorted(names['rows']['agent'].unique()))"
    )
    out = user.run("python", "-c", code)
    assert "Walker in plane-1" in out
    assert out.splitlines()[-1] == "8 ['Walker', 'blind']"
    assert (user.folder / "runs" / "notebook" / "walker" / "summary.json").is_file()
