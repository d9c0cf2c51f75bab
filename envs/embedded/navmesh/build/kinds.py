"""Names for the scalars that compiled kernels exchange.

Inside a kernel a Python number and a numpy scalar are the same thing, outside they are not; mypy sees `Any`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Int: TypeAlias = Any
"""A 64-bit (or shorter) integer."""

Real: TypeAlias = Any
"""A single-precision number."""

Flag: TypeAlias = Any
"""A truth value."""
