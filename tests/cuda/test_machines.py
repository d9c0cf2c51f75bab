"""Machines with other cards, drivers and launchers than ours."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from agents.common.checkpoints import placement
from agents.common.packing.loss import pack
from tests.agents.streamvln.tiny import tiny_model
from tests.cuda.pretended import pretended
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.training.options import LAUNCHER_VARIABLES
from vlnbench.training.setup import find_process
from vlnbench.util.gpu_memory import ALLOCATOR, settle_allocator
from vlnbench.util.machine import Gpu, gpus, hardware


def test_a_driver_that_knows_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(stdout="NVIDIA GB10, [N/A]\nNVIDIA H100 80GB HBM3, 81559\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    assert gpus() == [Gpu("NVIDIA GB10", None), Gpu("NVIDIA H100 80GB HBM3", 81559)]


def test_the_card_is_that_of_the_process_whatever_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-3b1f")
    with pretended():
        assert hardware("cuda")["gpu"] == "Pretended"


def test_segments_that_grow_are_settled_before_torch_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALLOCATOR:
        monkeypatch.setenv(name, "")  # so that it is as before at the end
        monkeypatch.delenv(name)
    assert main(["eval", "--agent", "random", "--checkpoint", "x"]) == 2
    with pretended():
        assert hardware("cuda")["allocator"] == "expandable_segments:True"
        monkeypatch.setenv(ALLOCATOR[0], "max_split_size_mb:128")
        settle_allocator()
        assert hardware("cuda")["allocator"] == "max_split_size_mb:128"


def test_one_gpu_for_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pretended():
        with pytest.raises(UsageError, match="local rank 3: this machine has 1 CUDA devices"):
            find_process()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        assert find_process().device == torch.device("cuda", 0)


def test_tasks_of_srun_are_the_processes_of_a_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in LAUNCHER_VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is as before at the end
        monkeypatch.delenv(name)
    slurm = {"JOB_ID": "71", "STEP_ID": "2", "PROCID": "9", "LOCALID": "1", "STEP_NUM_TASKS": "16"}
    for name, value in {**slurm, "STEP_NUM_NODES": "2", "STEP_NODELIST": "gpu[3-4]"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"scontrol show hostnames .* does not name this step's machines"):
        find_process()
    (tmp_path / "scontrol").write_text("#!/bin/sh\n[ $3 = 'gpu[3-4]' ] && echo gpu3 && echo gpu4\n")
    (tmp_path / "scontrol").chmod(0o755)
    found = find_process()
    assert (found.rank, found.local_rank, found.world_size) == (9, 1, 16)
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("gpu3", "20570")
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert find_process().world_size == 1


def test_flash_attention_that_does_not_work_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(name: str) -> None:
        raise ImportError("undefined symbol: _ZN3c10")

    monkeypatch.setattr(placement, "find_spec", lambda name: object())
    monkeypatch.setattr(placement, "import_module", broken)
    with pretended():
        assert placement.place("cuda", "bfloat16", "auto", torch.float32).attn == "sdpa"
        assert "flash_attention_2 does not work here (ImportError: undefined symbol" in capsys.readouterr().err
        with pytest.raises(UsageError, match="does not work here"):
            placement.place("cuda", "bfloat16", "flash_attention_2", torch.float32)


def test_what_only_a_cpu_computes_is_left_out_where_training_will_be_on_a_gpu() -> None:
    options = SimpleNamespace(gradient_checkpointing=False, compile=False, zero=0, lora_rank=0)
    packed, plain = tiny_model(), tiny_model()
    pack(packed, options)  # type: ignore[arg-type]
    with pretended():
        pack(plain, options)  # type: ignore[arg-type]
    assert (packed.packed_loss is None, plain.packed_loss is None) == (False, True)
