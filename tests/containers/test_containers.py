"""Containers and workflow say what the README says; the default one is built where that is asked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.containers.bare_root import DOCKERFILE, ROOT, Step, commands, read_steps

FOLDER = ROOT / "containers"
WORKFLOW = ROOT / ".github" / "workflows" / "checks.yml"
RECIPES = [DOCKERFILE, FOLDER / "vlnbench.def", FOLDER / "habitat-sim.Dockerfile"]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [*RECIPES, WORKFLOW], ids=lambda path: path.name)
def test_versions_are_those_of_the_readme(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    (wanted,) = set(re.findall(r"torch==([\d.]+\d)", README))
    assert set(re.findall(r"\btorch==([\d.]+\d)", text)) == {wanted}


@pytest.mark.parametrize("path", RECIPES[:2], ids=lambda path: path.name)
def test_nothing_of_the_system_is_needed_beyond_python_and_what_compiling_calls(path: Path) -> None:
    found = re.findall(
        r"apt-get install --yes --no-install-recommends ([\w+ -]+?) (?:&&|$)", path.read_text("utf-8")
    )
    assert found == ["python3 python3-venv g++ libc6-dev python3-dev"]


def test_the_steps_run_as_the_user_of_the_dockerfile() -> None:
    steps = read_steps(DOCKERFILE.read_text(encoding="utf-8"))
    assert steps[0] == Step("FROM", "debian:bookworm-slim")
    lines = list(commands(steps, ["list"]))
    users = [re.search(r"--userspec=(\w+)", line) for line in lines]
    assert [found[1] for found in users if found] == ["root"] * 2 + ["vlnbench"] * 5
    assert lines[-1].endswith("'cd /work && vlnbench list'")
    assert "venv/bin/pip install --no-cache-dir $TORCH" in lines[4]
    assert "TORCH=torch==2.13.0" in lines[4]


def test_an_unknown_instruction_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match="HEALTHCHECK is not known"):
        list(commands([Step("HEALTHCHECK", "CMD true")], []))


def test_the_apptainer_definition_runs_the_commands_of_the_dockerfile() -> None:
    """So what is said of the one, which is built in a bare Debian, holds for the other."""
    steps = read_steps(DOCKERFILE.read_text(encoding="utf-8"))
    variables = dict(step.text.split("=", 1) for step in steps if step.name == "ARG")
    ran = [step.text for step in steps if step.name == "RUN"]
    ran = [text for text in ran if "useradd" not in text and "WarmUp" not in text]
    for name, value in variables.items():
        ran = [text.replace(f"${name}", value.strip('"')) for text in ran]
    ran = [re.sub(r"(^| )venv\b", r"\1/opt/venv", text) for text in ran]
    definition = (FOLDER / "vlnbench.def").read_text(encoding="utf-8")
    sections = re.split(r"^%(\w+).*$", definition, flags=re.MULTILINE)
    post = dict(zip(sections[1::2], sections[2::2], strict=True))["post"]
    assert [line.strip() for line in post.splitlines() if line.strip() and "#" not in line] == [
        text.replace("-m /opt/venv /opt/venv", "-m venv /opt/venv") for text in ran
    ]


def test_the_conda_environment_has_a_python_that_vlnbench_runs_with() -> None:
    found = yaml.safe_load((FOLDER / "habitat-sim.yml").read_text(encoding="utf-8"))
    (python,) = (each for each in found["dependencies"] if str(each).startswith("python="))
    assert python in ("python=3.10", "python=3.11", "python=3.12")
    assert found["channels"][0] == "aihabitat-nightly"


def test_the_workflow_runs_what_there_is() -> None:
    found = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    runs = [step["run"] for job in found["jobs"].values() for step in job["steps"] if "run" in step]
    environments = re.findall(r"^\[testenv:(\w+)\]", (ROOT / "tox.ini").read_text("utf-8"), re.MULTILINE)
    named = {name for run in runs for name in re.findall(r"tox -e (\w+)", run)}
    assert named == {"lint", "type"} <= set(environments)
    for run in runs:
        for folder in re.findall(r"\btests/[\w/]+", run):
            assert (ROOT / folder).exists()
        for flags in re.findall(r'vlnbench" (data houses|eval) (.*)', run):
            shown = subprocess.run(
                [sys.executable, "-m", "vlnbench", *flags[0].split(), "--help"],
                capture_output=True,
                text=True,
                cwd=ROOT,
            ).stdout
            assert set(re.findall(r"--[a-z-]+", flags[1])) <= set(re.findall(r"--[a-z-]+", shown))


@pytest.mark.slow
def test_the_default_one_is_built_and_evaluates(tmp_path: Path) -> None:
    """Fifteen minutes and a gigabyte of downloads, so only where VLNBENCH_BARE_ROOT=1 asks for it."""
    if os.environ.get("VLNBENCH_BARE_ROOT") != "1":
        pytest.skip("set VLNBENCH_BARE_ROOT=1 to build containers/Dockerfile in a bare Debian")
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is not installed")
    wheel = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(wheel, cwd=ROOT, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.whl")
    command = [sys.executable, "-m", "tests.containers.bare_root", "--wheel", str(built), "--run", "list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "houses-r2r" in done.stdout
