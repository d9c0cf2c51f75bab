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


ENGINE = """
from pathlib import Path
import torch
from deepspeed.runtime.engine import DeepSpeedEngine
from agents.streamvln.options import StreamVLNTraining
from vlnbench.training.parts import Group
from vlnbench.training.setup import connected, find_process, start_engine

configure = DeepSpeedEngine._configure_distributed_model

def spied(engine, model):
    print("whole:", sum(each.numel() for each in model.parameters()))
    configure(engine, model)

DeepSpeedEngine._configure_distributed_model = spied
process = find_process()
with connected(process):
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    named = dict(model.named_parameters())
    expected = model(torch.ones(1, 64)).sum().item()
    options = StreamVLNTraining(checkpoint="", trajectories=Path(), out=Path(), zero=3, batch=1, accumulation=1)
    group = Group("mm_mlp_adapter", tuple(named), tuple(named.values()), True, (True,) * len(named))
    engine = start_engine(model, options, [group], process, torch.float32)
    found = engine(torch.ones(1, 64)).sum()
    print("same:", abs(found.item() - expected) < 1e-5)
    engine.destroy()
"""


@pytest.mark.slow
@pytest.mark.needs("deepspeed")
def test_zero_3_never_has_the_whole_network_on_a_gpu() -> None:
    """DeepSpeed moves what it is given there: nothing whole is left by then, each parameter having gone alone."""
    done = subprocess.run([sys.executable, "-c", ENGINE], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if ": " in line][-2:] == ["whole: 0", "same: True"]
