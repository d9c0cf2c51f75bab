"""One typed door to numba: every compiled kernel of the embedded simulator is declared through `kernel`.

Machine code is kept in `<cache>/kernels/<digest>`, where the digest covers every source file of the package that
the kernel lives in. numba itself looks only at the file of the kernel: after an update that touched another file
of the package, it would go on running the old code that was inlined from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from envs.embedded.kernels.cache import own_cache

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
    """
    digest = hashlib.sha256(f"{numba.__version__} {package}".encode())
    simulator = Path(__file__).parents[1]
    inside = package.is_relative_to(simulator)
    whole = simulator / package.relative_to(simulator).parts[0] if inside else package
    for source in [Path(__file__), *sorted(whole.rglob("*.py"))]:
        digest.update(source.read_bytes())
    return own_cache() / "kernels" / f"{package.name}-{digest.hexdigest()[:16]}"


def _compiled(function: F, **options: Any) -> F:
    folder = kernel_cache(Path(function.__code__.co_filename).parent)
    config: Any = numba.config
    njit: Any = numba.njit  # its annotations lack some documented options
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)  # read while the decorator runs; other packages keep their own setting
    try:
        compiled = njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)(function)
    finally:
        config.CACHE_DIR = before
    return cast("F", compiled)
