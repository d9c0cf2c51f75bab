"""Tries the lowest and the newest version of every range in pyproject.toml, one at a time, and numpy 1.26 and 2.

python -m tests.versions                    all of them, with a quick selection of tests
python -m tests.versions numpy scipy --tests tests/envs/embedded
python -m tests.versions numpy==2.2.6       one version

Each version is installed without what it depends on into a folder of its own, which comes before the environment
that this runs in. Prints a table; exit code 1 where tests failed. What has no build for this Python is named.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ["tests/envs/embedded", "tests/evaluation", "tests/agents/vlnce", "tests/cli/test_cli.py"]
_RANGE = re.compile(r'^ +"(?P<name>[a-z][a-z0-9-]*)(?P<range>>=(?P<lowest>[0-9.]+)[^"]*)",', re.MULTILINE)
MORE = {"numpy": ["==1.26.*", ">=2,<2.3"]}
"""Beside the ends: habitat-lab wants the one, numba the other at most."""

BESIDE = {
    "numba==0.60": ["llvmlite==0.43.*"],
    "tyro==1.0": ["docstring-parser", "typeguard"],
    "transformers==4.51": ["tokenizers==0.21.*", "huggingface-hub<1"],
}
"""What a version works with alone."""


def candidates(text: str, chosen: list[str]) -> Iterator[str]:
    """Requirements to be tried, of the ranges in a pyproject.toml."""
    names = {each.partition("=")[0] for each in chosen}
    yield from (each for each in chosen if "==" in each)
    for found in _RANGE.finditer(text):
        name = found["name"]
        if (not names or name in names) and not any(each.startswith(f"{name}==") for each in chosen):
            ends = [f"=={found['lowest']}", *MORE.get(name, []), found["range"]]
            yield from (f"{name}{end}" for end in dict.fromkeys(ends))


def tried(requirement: str, tests: list[str], folder: Path) -> str:
    """What became of one requirement, in a few words."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    made = subprocess.run(
        [*install, "--target", folder, requirement, *BESIDE.get(requirement, [])], capture_output=True, text=True
    )
    if made.returncode:
        return f"cannot be installed: {made.stderr.strip().splitlines()[-1][:150]}"
    version = ", ".join(sorted(path.name.removesuffix(".dist-info") for path in folder.glob("*.dist-info")))
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    wrong = [line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))]
    return f"{version}: {lines[-1] if lines else 'no output'}{'; ' + wrong[-1][:200] if wrong else ''}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*")
    parser.add_argument("--tests", nargs="+", default=TESTS)
    given = parser.parse_args()
    failed = False
    for requirement in candidates((ROOT / "pyproject.toml").read_text(encoding="utf-8"), given.packages):
        with tempfile.TemporaryDirectory() as folder:
            result = tried(requirement, given.tests, Path(folder))
        failed |= "failed" in result or "error" in result
        print(f"{requirement:<36} {result}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
