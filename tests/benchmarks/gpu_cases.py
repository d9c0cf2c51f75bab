"""Cases that go wrong in all the ways there are, for the tests of `gpu_evidence`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu_evidence.pieces import CannotRunError, Job


def run(job: Job) -> Mapping[str, Any]:
    """What the case's name says."""
    job.save({"before": 1})
    if job.case == "lacks":
        raise CannotRunError("no such thing here")
    if job.case == "memory":
        raise RuntimeError("CUDA out of memory. Tried to allocate 1.00 TiB.")
    if job.case == "breaks":
        raise ValueError("first line\nsecond line")
    if job.case == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.case == "hangs":
        time.sleep(600)
    return {"before": 1, "after": 2}
