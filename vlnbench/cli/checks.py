"""What works on this machine and what to do about the rest.

Every check runs on its own: one that raises is reported as failed and the others go on. Third-party packages are
imported in processes of their own, so that a library that crashes or hangs takes nothing with it; what of vlnbench
needs numpy or numba is imported inside the checks, so that a broken one is reported, too.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlnbench.cli.gpu_checks import LOOK, check_cuda
from vlnbench.defaults import SIMULATOR_CHECKS
from vlnbench.errors import UsageError
from vlnbench.util.findings import Finding, Level, ProbeError, begun, probe
from vlnbench.util.machine import free_space, installed_version

if TYPE_CHECKING:
    from vlnbench.data.benchmarks import Benchmark

GIB = 1024.0**3
FREE_FAIL_GIB, FREE_WARN_GIB = 1.0, 10.0


@dataclass(frozen=True, slots=True)
class Package:
    """A third-party package: distribution, statement that imports it, and what its absence means.

    chain: packages of one number are tried in one process.
    """

    name: str
    statement: str
    absent: Level
    use: str
    chain: int = 0


PACKAGES = (
    Package("numpy", "import numpy", "FAIL", "everything"),
    Package("numba", "import numba", "FAIL", "the simulator that ships with vlnbench"),
    Package("opencv-python", "import cv2", "ok", "what habitat-lab draws"),
    Package(
        "habitat-lab", "from envs.habitat_lab import import_habitat; import_habitat()", "FAIL", "every evaluation"
    ),
    Package("torch", "import torch", "warn", "learned agents and training", 1),
    Package("transformers", "import transformers", "warn", "learned agents and training"),
    Package("deepspeed", "import deepspeed", "ok", "training with more than one GPU", 1),
)

HEADLESS = "opencv-python-headless"
HEADLESS_ADVICE = f"run `pip install --force-reinstall --no-deps {HEADLESS}==4.11.0.86`, which needs no libGL"


Check = Callable[[], Iterator[Finding]]


def run_checks(data_root: Path) -> Iterator[Finding]:
    """All findings, one check after the other. Raises nothing: a broken check is a finding."""
    checks: list[tuple[str, Check]] = [
        ("Python", check_python),
        *((package.name, partial(check_package, package)) for package in PACKAGES),
        ("own packages", check_own_packages),
        ("CUDA", check_cuda),
        *_simulator_checks(),
        ("disk", partial(check_disk, data_root)),
        ("data", partial(check_data, data_root)),
    ]
    with begun(_chains()):
        for name, check in checks:
            yield from _guarded(name, check)


def _chains() -> list[list[str]]:
    """What is tried at once: the installed packages, and GPUs after torch."""
    chains: dict[int, list[str]] = {}
    for package in PACKAGES:
        if _installed(package) is not None:
            chain = chains.setdefault(package.chain, [])
            chain += [package.statement, *([LOOK] if package.name == "torch" else [])]
    return list(chains.values())


def report(data_root: Path) -> None:
    """Print every finding as it comes. Raises UsageError at the end if one of them is a failure."""
    failed = 0
    for finding in run_checks(data_root):
        print(finding, flush=True)
        failed += finding.level == "FAIL"
    if failed:
        raise UsageError(f"{failed} check{'s' * (failed > 1)} failed; see the lines that begin with FAIL")


def check_python() -> Iterator[Finding]:
    """The version of Python, and whether it is one that vlnbench runs with."""
    version = ".".join(map(str, sys.version_info[:3]))
    wanted = metadata.metadata("vlnbench")["Requires-Python"]
    if importlib.import_module("packaging.specifiers").SpecifierSet(wanted).contains(version):
        yield Finding("ok", "Python", f"{version} ({sys.executable})")
    else:
        yield Finding("FAIL", "Python", version, f"use Python {wanted}")


def check_package(package: Package) -> Iterator[Finding]:
    """Installed, within the range that vlnbench asks for, and importable."""
    version = _installed(package)
    if version is None:
        advice = f"run `pip install {package.name}`" if package.absent != "ok" else ""
        yield Finding(package.absent, package.name, f"not installed; needed for {package.use}", advice)
        return
    try:
        probe(package.statement)
    except ProbeError as error:
        broken: Level = "warn" if package.absent == "ok" else "FAIL"
        advice = HEADLESS_ADVICE if "libGL" in str(error) else f"reinstall it; needed for {package.use}"
        yield Finding(broken, package.name, f"{version} cannot be imported ({error})", advice)
        return
    wanted = _outside(package.name, version)
    if wanted:
        advice = f"run `pip install '{package.name}{wanted}'`"
        yield Finding("warn", package.name, f"{version} is outside of {wanted}", advice)
    else:
        yield Finding("ok", package.name, version)


def _installed(package: Package) -> str | None:
    version = installed_version(package.name)
    return installed_version(HEADLESS) if version is None and package.name == "opencv-python" else version


def check_own_packages() -> Iterator[Finding]:
    """`agents` and `envs` are common names: another distribution's must not come first."""
    from vlnbench.util.loading import import_module

    for name in ("agents", "envs"):
        try:
            module = import_module(name)
        except UsageError as error:
            yield Finding("FAIL", f"package {name}", str(error))
        else:
            yield Finding("ok", f"package {name}", str(Path(str(module.__file__)).parent))


def _simulator_checks() -> list[tuple[str, Check]]:
    """Those of the simulators that ship with vlnbench; none where `envs` cannot be loaded, which is a finding
    itself."""
    from vlnbench.util.loading import import_string

    try:
        return list(import_string(SIMULATOR_CHECKS).items())
    except Exception as error:  # reported as a broken check
        reason = str(error)

        def broken() -> Iterator[Finding]:
            yield Finding("FAIL", "simulator", f"its checks cannot be loaded ({reason})")

        return [("simulator", broken)]


def check_disk(data_root: Path) -> Iterator[Finding]:
    """Free space where data and where runs are written."""
    for name, path in (("disk (data)", data_root), ("disk (runs)", Path.cwd())):
        taken, existing = free_space(path)
        free = taken / GIB
        level: Level = "FAIL" if free < FREE_FAIL_GIB else "warn" if free < FREE_WARN_GIB else "ok"
        advice = "" if level == "ok" else "free some space"
        yield Finding(level, name, f"{free:.1f} GiB free at {existing}", advice)


def check_data(data_root: Path) -> Iterator[Finding]:
    """One finding for each benchmark."""
    from vlnbench.data.benchmarks import every_benchmark

    for benchmark in every_benchmark():
        yield from _guarded(f"data {benchmark.name}", partial(check_benchmark, benchmark, data_root))


def check_benchmark(benchmark: Benchmark, data_root: Path) -> Iterator[Finding]:
    """Which splits of a benchmark are there; validation splits are read, and their scenes looked for."""
    from vlnbench.data.datasets import locate
    from vlnbench.data.episodes import load_split

    name = f"data {benchmark.name}"
    parts, missing = [], []
    for split in benchmark.splits:
        try:
            locate(benchmark, split, data_root)
        except UsageError:
            continue  # not downloaded
        if not split.startswith("val"):
            parts.append(split)
            continue
        episodes = load_split(benchmark, split, data_root, allow_partial=True)
        scenes = {episode.scene_id for episode in episodes.episodes}
        found = sum((episodes.scenes_dir / scene).is_file() for scene in scenes)
        part = " (not as many as published)" if episodes.partial else ""
        parts.append(f"{split} {len(episodes.episodes)} episodes{part} with {found} of {len(scenes)} scenes")
        if found < len(scenes):
            missing.append(f"scenes of {split} in {episodes.scenes_dir}")
    if not parts and benchmark.generator is not None:
        yield Finding("ok", name, f"not below {data_root} yet; the first evaluation generates it")
    elif not parts:
        folders = " or ".join(benchmark.dataset_folders)
        advice = f"to use it, add datasets/{folders} or set --data-root"
        yield Finding("warn", name, f"absent below {data_root}", advice)
    elif missing:
        yield Finding("warn", name, ", ".join(parts), f"to use it, add the {' and the '.join(missing)}")
    else:
        yield Finding("ok", name, ", ".join(parts))


def _guarded(name: str, check: Check) -> Iterator[Finding]:
    try:
        yield from check()
    except UsageError as error:
        yield Finding("FAIL", name, str(error))
    except Exception as error:  # reported, and the next check runs
        yield Finding("FAIL", name, f"the check itself broke ({_one_line(error)})")


def _outside(distribution: str, version: str) -> str:
    """The range that vlnbench asks of a distribution if `version` is outside of it, else nothing."""
    requirement: Any = importlib.import_module("packaging.requirements").Requirement
    for text in metadata.requires("vlnbench") or ():
        wanted = requirement(text)
        if wanted.name == distribution and not wanted.specifier.contains(version, prereleases=True):
            return str(wanted.specifier)
    return ""


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
