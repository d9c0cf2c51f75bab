"""One typed door to numba: every compiled kernel of the embedded simulator is declared through `kernel`.

Machine code is kept in `<cache>/kernels/<digest>`, where the digest covers every source file of the package that
the kernel lives in. numba itself looks only at the file of the kernel: after an update that touched another file
of the package, it would go on running the old code that was inlined from there. The digest knows no path, so that
checkouts and environments of a user with equal sources share what one of them has compiled.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

from vlnbench.util.durable.own import own_cache

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile `function` with numba on first call and cache the machine code on disk.

    Strict IEEE arithmetic (no `fastmath`): the navigation kernels reproduce single-precision results of the
    reference simulator, and a contracted multiply-add would change them.
    """
    return _compiled(function)


def inner_kernel(function: F) -> F:
    """As `kernel`, for functions that only kernels call: the entry for Python callers is left out.

    Reference counting is left out too, which would cost time in loops and in compilation: such a function works on
    the arrays it is given and can neither create nor return one.
    """
    return _compiled(function, no_cpython_wrapper=True, _nrt=False)


def inline_kernel(function: F) -> F:
    """As `inner_kernel`, made part of every caller: for steps of inner loops.

    Arrays are passed as seven numbers each, which costs more than a short function does.
    """
    return _compiled(function, no_cpython_wrapper=True, _nrt=False, forceinline=True)


@cache
def kernel_cache(package: Path) -> Path:
    """Cache folder of the kernels in a package folder; another one after any change to its sources or to numba.

    Kernels are inlined across the rooms of `navmesh`, so these share one digest, over the sources of all of them.
    Numbers of `limits` are compiled in, and NumPy's version decides on types of results.
    """
    simulator = Path(__file__).parents[1]
    inside = package.is_relative_to(simulator)
    whole = simulator / package.relative_to(simulator).parts[0] if inside else package
    made_by = [numba.__version__, np.__version__, "" if _LOCATES else str(package)]
    digest = hashlib.sha256(repr(made_by).encode())
    for source in [Path(__file__), simulator / "limits.py", *sorted(whole.rglob("*.py"))]:
        content = source.read_bytes()
        digest.update(f"{os.path.relpath(source, whole)} {len(content)} ".encode() + content)
    return own_cache() / "kernels" / f"{package.name}-{digest.hexdigest()[:16]}"


class KernelLocator:
    """Tells numba where the code of a kernel is kept: numba's own locators add the path of the source file."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._py_file, self._line = file, function.__code__.co_firstlineno
        self._folder = kernel_cache(Path(file).parent)

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> KernelLocator:
        return cls(function, file)

    def ensure_cache_path(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """What numba compares before it loads: nothing is left to compare, the folder is of these sources."""
        return self._folder.name

    def get_disambiguator(self) -> str:
        return str(self._line)


_LOCATES = hasattr(numba.config, "CACHE_LOCATOR_CLASSES")
"""Whether this numba can be given a locator; one before that keeps kernels by path, and so does the digest."""


def _compiled(function: F, **options: Any) -> F:
    folder = kernel_cache(Path(function.__code__.co_filename).parent)
    name, value = "CACHE_DIR", str(folder)
    if _LOCATES:
        name, value = "CACHE_LOCATOR_CLASSES", f"{__name__}.{KernelLocator.__name__}"
    config: Any = numba.config
    njit: Any = numba.njit  # its annotations lack some documented options
    before = getattr(config, name)
    setattr(config, name, value)  # read while the decorator runs; other packages keep their own setting
    try:
        compiled = njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)(function)
    finally:
        setattr(config, name, before)
    return cast("F", compiled)
