"""Every fault does what its description promises, and docs/findings/reliability.md says what was recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import file_systems
from tests.faults.all_faults import FAULTS
from tests.faults.table import read_records

LONG = "two-machines-at-once"
"""Most of its two minutes are waiting."""
NEEDS = {"full-disk": "--mount", "folders-of-others": "--user", "unprivileged-user": "--user"}
"""Faults for which root needs a namespace: of mounts, or of users so as to be nobody."""


@pytest.mark.slow  # runs whole evaluations
@pytest.mark.skipif(sys.platform != "linux", reason="signals, terminals and mounts of Linux")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name == LONG)) for name in FAULTS]
)
def test_a_fault_does_no_more_harm_than_promised(name: str, tmp_path: Path) -> None:
    if name in NEEDS and not _may(NEEDS[name]):
        pytest.skip(f"unshare {NEEDS[name]} is not allowed here")
    if FAULTS[name].run.__module__ == file_systems.__name__ and shutil.which("gcc") is None:
        pytest.skip("no gcc: the library that is preloaded cannot be compiled")
    FAULTS[name].run(tmp_path)


def _may(namespace: str) -> bool:
    if os.geteuid() != 0:  # an ordinary user already, who may not mount
        return namespace == "--user"
    return shutil.which("unshare") is not None and subprocess.call(["unshare", namespace, "true"]) == 0


def test_nothing_recorded_went_wrong() -> None:
    records = read_records()
    assert records
    assert {name.removeprefix("fault ") for name in records if name.startswith("fault ")} <= set(FAULTS)
    assert [record.what for record in records.values() if record.wrong] == []
