"""What works on this machine and what to do about the rest.

Every check runs on its own: one that raises is reported as failed and the others go on. Third-party packages are
imported in a process of their own, so that a library that crashes or hangs takes nothing with it; what of vlnbench
needs numpy or numba is imported inside the checks, so that a broken one is reported, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vlnbench.errors import UsageError
from vlnbench.util.machine import installed_version

if TYPE_CHECKING:
    from vlnbench.data.benchmarks import Benchmark

Level = Literal["ok", "warn", "FAIL"]

IMPORT_TIMEOUT_S = 180.0
GIB = 1024.0**3
FREE_FAIL_GIB, FREE_WARN_GIB = 1.0, 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `advice` says what to do where the level is not "ok"."""

    level: Level
    name: str
    detail: str
    advice: str = ""

    def __str__(self) -> str:
        line = f"{self.level:<4}  {self.name:<16}  {self.detail}"
        return line + (f"; {self.advice}" if self.advice else "")


@dataclass(frozen=True, slots=True)
class Package:
    """A third-party package: distribution, statement that imports it, and what its absence means."""

    name: str
    statement: str
    absent: Level
    use: str


PACKAGES = (
    Package("numpy", "import numpy", "FAIL", "everything"),
    Package("numba", "import numba", "FAIL", "the embedded simulator"),
    Package("opencv-python", "import cv2", "FAIL", "habitat-lab"),
    Package(
        "habitat-lab", "from envs.habitat_lab import import_habitat; import_habitat()", "FAIL", "every evaluation"
    ),
    Package("torch", "import torch", "warn", "learned agents and training"),
    Package("transformers", "import transformers", "warn", "learned agents and training"),
    Package("deepspeed", "import deepspeed", "ok", "training with more than one GPU"),
)

HEADLESS = "opencv-python-headless"
HEADLESS_ADVICE = f"run `pip install --force-reinstall --no-deps {HEADLESS}==4.11.0.86`, which needs no libGL"


Check = Callable[[], Iterator[Finding]]


class ProbeError(Exception):
    """A statement failed in its own process; the message is the last line of its traceback."""


def run_checks(data_root: Path) -> Iterator[Finding]:
    """All findings, one check after the other. Raises nothing: a broken check is a finding."""
    checks: list[tuple[str, Check]] = [
        ("Python", check_python),
        *((package.name, partial(check_package, package)) for package in PACKAGES),
        ("own packages", check_own_packages),
        ("simulator", check_simulator),
        ("CUDA", check_cuda),
        ("EGL", check_egl),
        ("cache", check_cache),
        ("disk", partial(check_disk, data_root)),
        ("data", partial(check_data, data_root)),
    ]
    for name, check in checks:
        yield from _guarded(name, check)


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
    version = installed_version(package.name)
    if version is None and package.name == "opencv-python":
        version = installed_version(HEADLESS)
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


def check_simulator() -> Iterator[Finding]:
    """Which simulator is used, and whether habitat-sim can be."""
    if not _has_habitat_sim():
        yield Finding("ok", "simulator", "embedded (habitat-sim is not installed)")
        return
    try:
        version = probe("import habitat_sim; print(habitat_sim.__version__)")
    except ProbeError as error:
        advice = "repair or remove it, or use --sim embedded"
        yield Finding("FAIL", "simulator", f"habitat-sim cannot be imported ({error})", advice)
    else:
        yield Finding("ok", "simulator", f"habitat-sim {version}; embedded with --sim embedded")


def check_cuda() -> Iterator[Finding]:
    """GPUs as torch sees them, and whether its build has code for them."""
    if installed_version("torch") is None:
        yield Finding("warn", "CUDA", "unknown without torch", "learned agents need torch")
        return
    code = (
        "import json, torch; c = torch.cuda; n = c.device_count() if c.is_available() else 0; "
        "print(json.dumps([torch.version.cuda, c.get_arch_list(), [[c.get_device_name(i), "
        "c.get_device_properties(i).total_memory, c.get_device_capability(i)] for i in range(n)]]))"
    )
    build, architectures, devices = json.loads(probe(code))
    for i, (name, memory, (major, minor)) in enumerate(devices):
        found = f"{name}, {memory / GIB:.1f} GiB (torch built for CUDA {build})"
        if has_code_for(major, minor, architectures):
            yield Finding("ok", f"CUDA device {i}", found)
            continue
        detail = f"{found}, which has no code for sm_{major}{minor}, only for {', '.join(architectures)}"
        advice = "install a torch build that has (newer cards want a newer one), or give --device cpu"
        yield Finding("FAIL", f"CUDA device {i}", detail, advice)
    if devices:
        return
    if shutil.which("nvidia-smi"):
        advice = "install a torch build for the driver that `nvidia-smi` shows"
        yield Finding("warn", "CUDA", f"torch (built for CUDA {build}) sees no device though there is one", advice)
    else:
        yield Finding("warn", "CUDA", "no device", "scripted agents run without; learned ones will be slow")


_ARCHITECTURE = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<only>[af]?)")


def has_code_for(major: int, minor: int, architectures: Sequence[str]) -> bool:
    """Whether a torch build can run on a card of compute capability major.minor; True for lists of other makers.

    Its list names machine code (sm_86 is for 8.6 and later 8.x, sm_90a for 9.0 alone, sm_100f for 10.x) and code
    that the driver translates (compute_90 is for 9.0 and later). Source: CUDA C++ Programming Guide, "Compute
    Capabilities".
    """
    parsed = [found for each in architectures if (found := _ARCHITECTURE.fullmatch(each))]
    for found in parsed:
        of = int(found["major"]), int(found["minor"])
        translated = found["kind"] == "compute" and not found["only"]
        within = of == (major, minor) if found["only"] == "a" else of[0] == major and of[1] <= minor
        if within or (translated and of <= (major, minor)):
            return True
    return not parsed


def check_egl() -> Iterator[Finding]:
    """habitat-sim draws through EGL; the embedded simulator draws on the CPU and needs none."""
    needed = _has_habitat_sim()
    code = (
        "import ctypes; egl = ctypes.CDLL('libEGL.so.1'); egl.eglGetProcAddress.restype = ctypes.c_void_p; "
        "query = egl.eglGetProcAddress(b'eglQueryDevicesEXT'); n = ctypes.c_int(0); "
        "query and ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))"
        "(query)(0, None, ctypes.byref(n)); print(n.value)"
    )
    try:
        devices = int(probe(code))
    except ProbeError as error:
        devices, reason = 0, f"not available ({error})"
    else:
        reason = f"number of devices {devices}"
    if devices or not needed:
        yield Finding("ok", "EGL", reason + ("" if needed else "; only habitat-sim needs it"))
    else:
        yield Finding("FAIL", "EGL", reason, "install the EGL part of the GPU driver, or use --sim embedded")


def check_cache() -> Iterator[Finding]:
    """The cache folder can be written, and whether the embedded simulator is compiled."""
    from vlnbench.util.loading import import_string

    folder: Path = import_string("envs.embedded.kernels.cache:cache_dir")()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield Finding("FAIL", "cache", f"{folder} cannot be written ({error.strerror})", "set VLNBENCH_CACHE")
        return
    waiting = import_string("envs.embedded.warmup:WarmUp")(renderer=True).needed
    state = "not compiled yet, the first evaluation does it" if waiting else "compiled"
    yield Finding("ok", "cache", f"{folder}; kernels of the embedded simulator: {state}")


def check_disk(data_root: Path) -> Iterator[Finding]:
    """Free space where data and where runs are written."""
    for name, path in (("disk (data)", data_root), ("disk (runs)", Path.cwd())):
        existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
        free = shutil.disk_usage(existing).free / GIB
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


def probe(code: str, timeout_s: float = IMPORT_TIMEOUT_S) -> str:
    """Run Python statements in a process of their own, with this one's import path; returns the last line printed.

    Raises ProbeError with the reason if they raise, crash or hang.
    """
    start = f"import json, sys; sys.path[:] = json.loads(sys.argv[1])\n{code}"
    command = [sys.executable, "-W", "ignore", "-c", start, json.dumps(sys.path)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=_quiet())
    except subprocess.TimeoutExpired as error:
        raise ProbeError(f"no answer within {timeout_s:.0f} s") from error
    if result.returncode < 0:
        raise ProbeError(f"crashed with signal {-result.returncode}")
    lines = (result.stderr if result.returncode else result.stdout).strip().splitlines()
    if result.returncode:
        raise ProbeError(lines[-1] if lines else f"exit code {result.returncode}")
    return lines[-1] if lines else ""


def _guarded(name: str, check: Check) -> Iterator[Finding]:
    try:
        yield from check()
    except UsageError as error:
        yield Finding("FAIL", name, str(error))
    except Exception as error:  # reported, and the next check runs
        yield Finding("FAIL", name, f"the check itself broke ({_one_line(error)})")


def _has_habitat_sim() -> bool:
    return importlib.util.find_spec("habitat_sim") is not None


def _quiet() -> dict[str, str]:
    """The environment with what keeps libraries from chatting."""
    return {**os.environ, "PYTHONWARNINGS": "ignore", "GLOG_minloglevel": "2", "MAGNUM_LOG": "quiet"}


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
