from __future__ import annotations

import re
import subprocess
import sys
import tarfile
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
        "envs/houses/language/wide.json",
        "vlnbench/report/assets/report.js",
    } < held


@pytest.mark.slow
def test_a_release_could_be_uploaded(tmp_path: Path) -> None:
    """Wheel and sdist pass twine's checks, and from the sdist all can be built and tested again."""
    for module in ("hatchling", "twine"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    files = sorted(tmp_path.iterdir())
    assert [path.suffix for path in files] == [".whl", ".gz"]
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    subprocess.run(check, check=True, capture_output=True)
    with tarfile.open(files[1]) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert {
        "CHANGELOG.md",
        "CITATION.cff",
        "LICENSE",
        "mkdocs.yml",
        "docs/README.md",
        "tests/test_wheel.py",
    } <= held


def test_the_version_is_the_same_everywhere() -> None:
    from vlnbench import __version__

    def said(name: str, pattern: str) -> str:
        found = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert found is not None, name
        return found[1]

    assert said("pyproject.toml", r'^version = "(.+)"$') == said("CITATION.cff", r"^version: (.+)$") == __version__
    assert said("CHANGELOG.md", r"^## \[(.+?)\]") in ("Unreleased", __version__)
