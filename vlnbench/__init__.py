"""vlnbench: benchmark and evaluation harness for vision-and-language navigation agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vlnbench.version import __version__

if TYPE_CHECKING:
    from vlnbench.api import compare, evaluate, leaderboard_rows, load, matrix_rows, rank

__all__ = ["__version__", "compare", "evaluate", "leaderboard_rows", "load", "matrix_rows", "rank"]


def __getattr__(name: str) -> Any:
    """What `vlnbench.api` offers, imported when it is used: `import vlnbench` loads nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vlnbench import api

    return getattr(api, name)
