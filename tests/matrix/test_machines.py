"""A setting on several machines: the command that brings them together, and a training by it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agents.streamvln.test_samples import make_folder
from tests.matrix.conftest import Write
from vlnbench.matrix.spec import read_matrix
from vlnbench.matrix.work.stages import PORTS, stages_of

TWICE = """
import subprocess, sys
started = [subprocess.Popen(sys.argv[1:]) for _ in range(2)]
sys.exit(max(each.wait() for each in started))
"""
"""What starts a command on two machines, of which there is one here."""


def test_every_machine_starts_the_same_command(write: Write) -> None:
    matrix = read_matrix(write(run={"machines": 4, "gpus_per_setting": 8}))
    first, second = (stages_of(matrix, Path("work"), each, 8).train for each in matrix.settings[:2])
    assert first is not None
    assert second is not None
    command = first.command
    srun = ("srun", "--nodes=4", "--ntasks=4", "--gpus-per-node=8", "--kill-on-bad-exit=1")
    assert command[:5] == srun
    assert command[5:10] == (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=8", "--nnodes=4")
    place = next(word for word in command if word.startswith("--rdzv-endpoint="))
    assert int(place.rpartition(":")[2]) in PORTS
    assert place != next(word for word in second.command if word.startswith("--rdzv-endpoint="))
    given = {"machines": 2, "launch": ["pdsh", "-w", "a,b"], "rendezvous": "a:29500"}
    matrix = read_matrix(write(run=given))
    found = stages_of(matrix, Path("work"), matrix.settings[0], 1).train
    assert found is not None
    assert found.command[:3] == ("pdsh", "-w", "a,b")
    assert "--rdzv-endpoint=a:29500" in found.command


@pytest.mark.slow
def test_two_machines_train_one_network(write: Write, folder: Path) -> None:
    """Two starts of torchrun, as on two machines: one training of two processes."""
    make_folder(folder / "sets" / "R2R", [9, 9, 9, 9], ["Go."])
    run = {"machines": 2, "launch": [sys.executable, "-c", TWICE], "rendezvous": "127.0.0.1:29517"}
    train = {"checkpoint": "preset:streamvln-tiny", "trajectories": "sets", "steps": 1, "batch": 1}
    matrix = read_matrix(write(run=run, train={**train, "accumulation": 1, "workers": 0}))
    stage = stages_of(matrix, folder / "work", matrix.settings[1], 1).train
    assert stage is not None
    stage.folder.mkdir(parents=True)
    subprocess.run(stage.command, check=True, timeout=300, cwd=folder, capture_output=True)
    assert stage.complete()
    manifest = json.loads((stage.folder / "run" / "train.json").read_text())
    assert manifest["world_size"] == 2
