"""The loss of every family on the pretended GPU: no tensor on the wrong device, and in float32 that of the CPU.

Networks are loaded as the trainer does it: on the card, or on the host, from where the engine takes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agents.janusvln import test_family as janusvln
from tests.agents.navila import test_family as navila
from tests.agents.qwen_vl import test_qwen_vl as qwen_vl
from tests.agents.uninavid import test_family as uninavid
from tests.agents.vlnce import test_family as vlnce
from tests.cuda.pretended import CUDA, pretended
from tests.training import test_families as streamvln
from vlnbench.conformance.family import FamilyConformance, _Made
from vlnbench.training.options import TrainOptions
from vlnbench.training.parts import freeze
from vlnbench.training.setup import Process, placed

CPU = torch.device("cpu")
FAMILIES: dict[str, type[FamilyConformance]] = {
    "janusvln": janusvln.TestJanusVLN,
    "navila": navila.TestFamily,
    "qwen_vl": qwen_vl.TestFamily,
    "streamvln": streamvln.TestStreamVLN,
    "uninavid": uninavid.TestFamily,
    "cma": vlnce.TestCMA,
    "seq2seq": vlnce.TestSeq2Seq,
}
RECURRENT = ("cma", "seq2seq")
"""Those that keep their activations and compute in float32."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(name: str, folder: Path, **changes: Any) -> _Made:
    family = FAMILIES[name]()
    options: TrainOptions = replace(family.make_options(folder), **changes)
    return _Made(family.make_spec(), options, folder)


def loss_of(made: _Made, device: torch.device) -> float:
    """As a step of the trainer has it; the backward pass needs a build of PyTorch for GPUs."""
    torch.manual_seed(0)
    process = Process(0, 0, 1, device)
    made.placement = placed(made.checkpoints.placement(made.options, device), made.options, process)
    model = made.load()
    freeze(model, made.trains, made.options)
    model.train()
    if made.options.gradient_checkpointing:
        made.trains.enable_checkpointing(model)
    batch = made.batch(model)
    model.to(device)
    loss = made.trains.loss(model, batch)
    assert loss.device == device
    assert loss.requires_grad
    return float(loss.detach())


@pytest.mark.parametrize(
    ("name", "checkpointing"),
    [(name, again) for name in FAMILIES for again in (True, False) if not again or name not in RECURRENT],
)
def test_a_loss_on_a_gpu_is_that_of_the_cpu(name: str, checkpointing: bool, tmp_path: Path) -> None:
    made = make(name, tmp_path, dtype="float32", gradient_checkpointing=checkpointing, zero=0)
    expected = loss_of(made, CPU)
    with pretended() as device:
        assert loss_of(made, CUDA) == pytest.approx(expected, rel=1e-5)
    assert sum(device.launches.values()) > 0


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in RECURRENT])
def test_a_loss_in_bfloat16_is_near_that_in_float32(name: str, tmp_path: Path) -> None:
    made = make(name, tmp_path, dtype="float32")
    exact = loss_of(made, CPU)
    made.options = replace(made.options, dtype="auto")
    with pretended():
        assert loss_of(made, CUDA) == pytest.approx(exact, rel=0.05)
    assert made.placement.dtype is torch.bfloat16


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in RECURRENT])
@pytest.mark.parametrize(("zero", "where"), [(0, "cuda"), (2, "cuda"), (3, "cpu")])
def test_a_process_keeps_no_copy_of_the_weights_in_the_hosts_memory(
    name: str, zero: int, where: str, tmp_path: Path
) -> None:
    """Of ZeRO 3 none of them may hold the whole network on its card."""
    made = make(name, tmp_path, dtype="float32", zero=zero)
    with pretended():
        process = Process(0, 0, 1, CUDA)
        made.placement = placed(made.checkpoints.placement(made.options, CUDA), made.options, process)
        model = made.checkpoints.load(made.base, made.options, made.placement)
        assert {parameter.device.type for parameter in model.parameters()} == {where}
