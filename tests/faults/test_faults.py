"""Every fault does what its description promises, and docs/reliability.md says what was recorded of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.all_faults import FAULTS
from tests.faults.table import PAGE, RECORDS, marked, read_records

needs_mount = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="makes a small disk, for which it must be root"
)
NEEDS = {"full-disk": needs_mount}


@pytest.mark.slow  # runs whole evaluations
@pytest.mark.skipif(sys.platform != "linux", reason="signals, terminals and mounts of Linux")
@pytest.mark.parametrize("name", [pytest.param(name, marks=NEEDS.get(name, ())) for name in FAULTS])
def test_a_fault_does_no_more_harm_than_promised(name: str, tmp_path: Path) -> None:
    if name == "full-disk" and subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("may not mount")
    FAULTS[name].run(tmp_path)


def test_the_page_says_what_was_recorded() -> None:
    assert marked(read_records()) in PAGE.read_text(), "python -m tests.faults.table"


def test_nothing_recorded_went_wrong() -> None:
    records = read_records()
    assert {name.removeprefix("fault ") for name in records if name.startswith("fault ")} == set(FAULTS)
    assert [record.what for record in records.values() if record.wrong] == []
    assert RECORDS.exists()
