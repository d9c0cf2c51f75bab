from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("vlnbench", "agents", "envs")


def test_the_wheel_holds_every_file_of_its_packages(tmp_path: Path) -> None:
    """Modules, and what they read beside them: the report's script and style, the prompt, the lexicon."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    own = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    assert held == own | {"vlnbench/leaderboard/published.json"}
    assert {
        "agents/checkpoints/streamvln-tiny/model.safetensors",
        "agents/common/prompts/navigation.txt",
        "envs/houses/language/lexicon.json",
        "vlnbench/report/assets/report.js",
    } < held
