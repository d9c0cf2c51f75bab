"""One typed door to numba: every compiled kernel of the embedded simulator is declared through `kernel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile `function` with numba on first call and cache the machine code on disk.

    Strict IEEE arithmetic (no `fastmath`): the navigation kernels reproduce single-precision results of the
    reference simulator, and a contracted multiply-add would change them.
    """
    return cast("F", numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def fast_kernel(function: F) -> F:
    """As `kernel`, where re-associated arithmetic is harmless (shading, coverage of whole arrays)."""
    return cast("F", numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=True)(function))
