"""Work that is shared among processes, none of which outlives its parent."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from vlnbench.errors import UsageError

_T = TypeVar("_T")


@contextmanager
def processes(workers: int, start: Callable[..., None], *settings: Any) -> Iterator[ProcessPoolExecutor]:
    """Processes that call `start` with the settings when there is something to do.

    Raises UsageError if one of them dies.
    """
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, context, _begin, (start, *settings))
    try:
        yield executor
    except BrokenProcessPool as error:
        raise UsageError(
            "a process died (out of memory, or a crash of the simulator); run the same command again to "
            "go on, with fewer --workers if it was memory"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def in_processes(function: Callable[..., _T], work: Sequence[tuple[Any, ...]], at_once: int) -> Iterator[_T]:
    """Results of the function for each of some tuples of arguments, in their order; one at once: in this process.

    What is passed and returned is pickled. Raises UsageError if a process dies, and whatever the function raises.
    """
    if at_once == 1:
        yield from (function(*arguments) for arguments in work)
        return
    with processes(at_once, _nothing) as executor:
        yield from executor.map(function, *zip(*work, strict=True))


def _nothing() -> None:
    pass


def _begin(start: Callable[..., None], *settings: Any) -> None:
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    start(*settings)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
