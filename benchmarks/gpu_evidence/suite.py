"""The tests marked gpu, run by pytest in this process, and what became of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_evidence.pieces import Job

TESTS = Path(__file__).parents[2] / "tests"


class Outcomes:
    """A plugin of pytest: writes down how every test ended, as soon as it has."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test is over: the body counts, and whatever failed or was skipped around it."""
        if report.when == "call" or report.outcome != "passed":
            entry = {"outcome": report.outcome, "seconds": round(report.duration, 1), "why": _why(report)}
            self.tests[report.nodeid] = {name: value for name, value in entry.items() if value not in (None, "")}
            self._job.save(self.found())

    def found(self) -> Mapping[str, Any]:
        """Counts, and every test by its name."""
        outcomes = [entry["outcome"] for entry in self.tests.values()]
        return {**{name: outcomes.count(name) for name in ("passed", "failed", "skipped")}, "tests": self.tests}


def _why(report: pytest.TestReport) -> str | None:
    """The line that says why a test failed or was skipped."""
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return None if crash is None else str(crash.message)[:500]


def marked() -> list[str]:
    """Files in which tests are marked gpu: collecting all others would take a minute."""
    return sorted(str(path) for path in TESTS.rglob("test_*.py") if "mark.gpu" in path.read_text(encoding="utf-8"))


def run(job: Job) -> Mapping[str, Any]:
    """Run them. Warnings of other versions of libraries are no failures here."""
    outcomes = Outcomes(job)
    arguments = ["-m", "gpu", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "default", "-q", *marked()]
    code = pytest.main(arguments, plugins=[outcomes])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {code!r}, see log.txt")
    return outcomes.found()
