"""Named, versioned evaluation protocols: those that ship with vlnbench, of other distributions, and in files.

A benchmark fixes everything about a task that can change a score: the episodes, the body and its camera, the
step budget and the success rule. Two runs are comparable only if their fingerprints are equal.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from vlnbench.data.bodies import MARK, fitted, read_body
from vlnbench.data.protocol import Benchmark as Benchmark
from vlnbench.data.shipped import BENCHMARKS as BENCHMARKS
from vlnbench.data.shipped import VLM_BODY as VLM_BODY
from vlnbench.errors import UsageError, unknown
from vlnbench.interfaces import Conventions
from vlnbench.util.loading import import_string
from vlnbench.util.plugins import Plugin, plugins, readable

_FILES = (".yaml", ".yml", ".py")


def get_benchmark(name: str) -> Benchmark:
    """A benchmark by its name, from a file `FILE.yaml` or `FILE.py`, or by an import string `package.module:NAME`.

    A Python file calls its benchmark BENCHMARK. `NAME@512x512-hfov90` is one with another body (`bodies`). Raises
    UsageError naming the nearest known one, or what is wrong with the file.
    """
    base, mark, body = name.rpartition(MARK)
    if mark and re.fullmatch(r"[\w.-]*", body) and not body.endswith(_FILES):
        return _with_body(name, get_benchmark(base), body)
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if name.endswith(_FILES) or ":" in name:
        return _of_a_user(name)
    added = plugins("benchmarks", BENCHMARKS)
    if name not in added:
        raise UsageError(unknown("benchmark", name, [*BENCHMARKS, *added]) + "; or give a file .yaml or .py")
    return _added(added[name])


def as_expected(benchmark: Benchmark, expects: Conventions) -> Benchmark:
    """The benchmark with the body that an agent expects; one that ships with vlnbench where that is the same."""
    return fitted(benchmark, expects, BENCHMARKS.values())


def misfit(benchmark: Benchmark, expects: Conventions) -> str:
    """What of a benchmark's body an agent cannot do with, and where that is otherwise; empty where all fits."""
    if not (differing := expects.conflicts(benchmark.body)):
        return ""
    listed = ", ".join(f"{name} {wanted} (it has {has})" for name, (wanted, has) in differing.items())
    other = as_expected(benchmark, expects).name
    return f"needs {listed}; the same episodes with that body are benchmark {other!r}"


def every_benchmark() -> list[Benchmark]:
    """The benchmarks that have a name, but for those of other distributions that cannot be loaded."""
    return [*BENCHMARKS.values(), *readable("benchmarks", BENCHMARKS, _added).values()]


def _with_body(name: str, base: Benchmark, body: str) -> Benchmark:
    from vlnbench.data.benchmark_files import unfit  # pydantic, which nobody else here needs

    found = as_expected(base, read_body(body))
    if wrong := unfit(found.body):
        raise UsageError(f"benchmark {name!r}: {wrong}")
    return found


def _added(plugin: Plugin) -> Benchmark:
    from vlnbench.data.benchmark_files import problem

    found: Benchmark = plugin.load()
    if wrong := problem(found):
        raise plugin.error(wrong)
    if found.name != plugin.name:
        raise plugin.error(f"expected a benchmark of the name {plugin.name!r}, found {found.name!r}")
    return found


def _of_a_user(name: str) -> Benchmark:
    """A benchmark from a file or an import string, unless it has the name of another one."""
    from vlnbench.data import benchmark_files  # pydantic and yaml, which nobody else here needs

    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        found: Any = benchmark_files.read_benchmark(path, BENCHMARKS)
    else:
        found = benchmark_files.run_benchmark(path) if path.suffix == ".py" else import_string(name)
    if wrong := benchmark_files.problem(found):
        raise UsageError(f"benchmark {name!r}: {wrong}")
    if found.name in BENCHMARKS or found.name in plugins("benchmarks", BENCHMARKS):
        raise UsageError(f"benchmark {name!r}: name {found.name!r} is taken (`vlnbench list`); choose another one")
    return found  # type: ignore[no-any-return]
