"""The feature cache on a GPU: whole passes, one copy to the host for each, features that depend on no neighbor."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from tests.cuda.pretended import CUDA, Device, pretended
from vlnbench.training.family.trains import Features
from vlnbench.training.feature_cache import ON_GPU, CachedTower, FeatureStore, together
from vlnbench.training.setup import Process

FRAMES = 20


def seen(folder: Path, device: torch.device, keys: range) -> tuple[list[Tensor], list[int]]:
    """Features of frames by their number, and how many frames each pass has had."""
    passes: list[int] = []

    def encode(tower: nn.Module, pixels: Tensor) -> Tensor:
        passes.append(len(pixels))
        made: Tensor = tower(pixels)
        return made

    torch.manual_seed(0)
    tower = nn.Linear(6, 3).requires_grad_(False)
    for numbers in tower.parameters():
        numbers.mul_(64).round_()  # sums are exact then, in whatever order a kernel adds them up
    tower = tower.to(device)
    store = FeatureStore(folder, "f", 10**9, (3,), torch.float32)
    store.open()
    made = Features(tower, encode, (3,), torch.float32, "f", "frames")
    cache = CachedTower(tower, made, store, Process(0, 0, 1, device))
    pixels = [torch.full((6,), float(key)) for key in keys]
    order = [torch.arange(len(keys))]
    names = [f"{key:040x}" for key in keys]
    batch = SimpleNamespace(known=torch.zeros(0, 3), keys=names, pixels=pixels, order=order)
    return [each.cpu() for each in cache.features(batch)[0]], passes


def test_frames_are_encoded_in_whole_passes(tmp_path: Path) -> None:
    expected, alone = seen(tmp_path / "cpu", torch.device("cpu"), range(FRAMES))
    assert alone == [1] * FRAMES
    with pretended() as device:
        found, passes = seen(tmp_path / "gpu", CUDA, range(FRAMES))
        assert passes == [ON_GPU, ON_GPU]  # black frames fill up the last
        assert _down(device, "feature_cache.py") == len(passes)
        again, passes = seen(tmp_path / "gpu", CUDA, range(FRAMES + 1))
        assert passes == [ON_GPU]  # for the one that is new
    for before, own, kept in zip(expected, found, again, strict=False):
        assert torch.equal(before, own)
        assert torch.equal(own, kept)
    assert together(torch.device("cpu")) == 1


def _down(device: Device, file: str) -> int:
    return sum(count for where, count in device.down.items() if file in where)


def test_sizes_are_not_mixed(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, "f", 10**9, (-1, 2), torch.float32)
    store.open()
    shapes: list[tuple[int, ...]] = []

    def encode(tower: nn.Module, pixels: Tensor) -> Tensor:
        shapes.append(tuple(pixels.shape))
        return pixels

    made = Features(nn.Identity(), encode, (-1, 2), torch.float32, "f", "frames")
    cache = CachedTower(nn.Identity(), made, store, Process(0, 0, 1, torch.device("cpu")))
    pixels = [torch.full((size, 2), float(size)) for size in (3, 5, 3)]
    found = cache._look_up([f"{i:040x}" for i in range(3)], pixels)
    assert [each.shape[0] for each in found] == [3, 5, 3]
    assert shapes == [(1, 3, 2), (1, 3, 2), (1, 5, 2)]
