from __future__ import annotations

import subprocess
import sys

import pytest

LISTENS = """
import os, re
from pathlib import Path
from vlnbench.training.setup import barrier, connected, find_process

with connected(find_process()):
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    mine = {found[1] for link in links if (found := re.fullmatch(r"socket:\\[(\\d+)\\]", link))}
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in mine:  # listens
                print("listens at", fields[1])
"""


@pytest.mark.needs("deepspeed")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_training_of_one_process_listens_to_this_machine_alone() -> None:
    done = subprocess.run([sys.executable, "-c", LISTENS], capture_output=True, text=True, check=True)
    found = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("listens at")]
    assert all(address.startswith("0100007F:") for address in found), found
