"""Muon against its definition, and what it does not orthogonalize against torch's AdamW."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed

from vlnbench.training.muon import MOMENTUM, UPDATE_RMS, Muon, all_orthogonalized, orthogonalized, shares

RATE, DECAY, BETAS = 1e-2, 0.1, (0.9, 0.98)
sides = st.integers(1, 40)


@settings(deadline=None, max_examples=60)
@given(rows=sides, columns=sides, size=st.floats(1e-6, 1e6), seed=st.integers(0, 2**31))
def test_singular_values_become_about_one(rows: int, columns: int, size: float, seed: int) -> None:
    """With a random matrix's own left and right singular vectors."""
    matrix = size * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    kept = values > 0.02 * values.norm()  # smaller ones need more than five iterations
    found = left.mT @ orthogonalized(matrix) @ right.mT
    assert found.diag()[kept].min() > 0.65
    assert found.diag().max() < 1.25
    assert (found - found.diag().diag()).abs().max() < 0.02


@pytest.mark.parametrize("shape", [(5, 12, 8), (5, 8, 12)])
def test_several_matrices_in_bfloat16_are_what_each_is_in_float32(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape)
    for found, matrix in zip(orthogonalized(matrices, torch.bfloat16), matrices, strict=True):
        assert found.dtype is torch.float32
        assert (found - orthogonalized(matrix)).norm() < 0.03 * matrix.shape[0] ** 0.5


def made(tensors: list[torch.nn.Parameter], orthogonal: bool) -> Muon:
    group: dict[str, Any] = {"params": tensors, "lr": RATE, "weight_decay": DECAY, "orthogonal": orthogonal}
    return Muon([group], BETAS)


def test_matrices_move_along_orthogonalized_momentum() -> None:
    start, gradients = torch.randn(6, 4), torch.randn(2, 6, 4)
    matrix = torch.nn.Parameter(start.clone())
    optimizer = made([matrix], orthogonal=True)
    for gradient in gradients:
        matrix.grad = gradient
        optimizer.step()
    expected, momentum = start, torch.zeros(6, 4)
    for gradient in gradients:
        momentum = MOMENTUM * momentum + (1 - MOMENTUM) * gradient
        looking_ahead = MOMENTUM * momentum + (1 - MOMENTUM) * gradient
        expected = (1 - RATE * DECAY) * expected - RATE * UPDATE_RMS * 6**0.5 * orthogonalized(looking_ahead)
    torch.testing.assert_close(matrix.detach(), expected)


def test_an_update_is_as_large_as_adamws() -> None:
    matrix = torch.nn.Parameter(torch.zeros(64, 256))
    matrix.grad = torch.randn(64, 256)
    made([matrix], orthogonal=True).step()
    assert matrix.detach().square().mean().sqrt().item() == pytest.approx(RATE * UPDATE_RMS, rel=0.2)


def test_everything_else_is_adamws() -> None:
    starts = [torch.randn(5), torch.randn(3, 7)]
    ours, theirs = ([torch.nn.Parameter(start.clone()) for start in starts] for _ in range(2))
    optimizers = (
        made(ours, orthogonal=False),
        torch.optim.AdamW(theirs, lr=RATE, weight_decay=DECAY, betas=BETAS),
    )
    for _ in range(10):
        for mine, yours in zip(ours, theirs, strict=True):
            mine.grad = yours.grad = torch.randn_like(mine)
        for optimizer in optimizers:
            optimizer.step()
    for mine, yours in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, yours, rtol=1e-5, atol=1e-6)


def test_a_frozen_tensor_stays_as_it_is() -> None:
    tensor = torch.nn.Parameter(torch.ones(3))
    made([tensor], orthogonal=False).step()
    assert torch.equal(tensor.detach(), torch.ones(3))


@given(shapes=st.lists(st.tuples(sides, sides), min_size=1, max_size=20), processes=st.integers(1, 5))
def test_every_matrix_is_one_processs(shapes: list[tuple[int, int]], processes: int) -> None:
    taken = shares(shapes, processes)
    assert len(taken) == processes
    assert sorted(index for indices in taken for index in indices) == list(range(len(shapes)))


def turn_together(rank: int, folder: Path, matrices: list[torch.Tensor]) -> None:
    store = distributed.FileStore(str(folder / "store"), 3)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=3)
    torch.save(all_orthogonalized(matrices), folder / str(rank))
    distributed.destroy_process_group()


@pytest.mark.slow
def test_processes_that_share_the_work_find_what_one_would(tmp_path: Path) -> None:
    matrices = [torch.randn(shape) for shape in ((6, 4), (4, 9), (1, 1), (12, 3))]
    alone = [orthogonalized(matrix) for matrix in matrices]
    torch.multiprocessing.spawn(turn_together, (tmp_path, matrices), 3)  # type: ignore[no-untyped-call]
    for rank in range(3):
        found = torch.load(tmp_path / str(rank), weights_only=True)
        assert all(torch.equal(one, other) for one, other in zip(found, alone, strict=True))
