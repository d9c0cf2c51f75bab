"""How exactly a GPU computes: settled, said in a run's identity, and alike on the CPU where that can be."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from agents.common.checkpoints.placement import Placement, place
from agents.common.towers.vggt import FrameCache, geometry_features
from tests.agents.janusvln.tiny import tiny_frames, tiny_model
from tests.cuda.pretended import CUDA, pretended
from vlnbench.interfaces import Scalar
from vlnbench.rollout.agent_options import DeviceOptions
from vlnbench.training.arithmetic import settle_arithmetic


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As they were at the end."""
    before = tf32()
    settle_arithmetic(torch.bfloat16, tf32=True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    torch.use_deterministic_algorithms(False)


def tf32() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def test_float32_is_float32_on_a_gpu() -> None:
    place("cpu", "float32", "sdpa", torch.float32)
    assert tf32() == (True, True)
    with pretended():
        place("cuda", "float32", "sdpa", torch.float32)
    assert tf32() == (False, False)
    settle_arithmetic(torch.bfloat16, tf32=True)
    assert tf32() == (True, True)
    settle_arithmetic(torch.float32, tf32=True)
    assert tf32() == (False, False)


def test_sums_in_one_order_are_asked_for() -> None:
    with pretended():
        place("cuda", "float32", "sdpa", torch.float32)
        assert not torch.are_deterministic_algorithms_enabled()
        place("cuda", "float32", "sdpa", torch.float32, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.parametrize(
    ("dtype", "options", "expected"),
    [
        (torch.float32, DeviceOptions(), {"tf32": False}),
        (torch.bfloat16, DeviceOptions(), {"episodes_in_a_pass": "several"}),
        (torch.bfloat16, DeviceOptions(max_batch=1), {"episodes_in_a_pass": "one"}),
        (
            torch.float16,
            DeviceOptions(deterministic=True),
            {"episodes_in_a_pass": "several", "deterministic": True},
        ),
    ],
)
def test_a_runs_identity_says_what_a_gpu_adds(
    dtype: torch.dtype, options: DeviceOptions, expected: dict[str, Scalar]
) -> None:
    usual = {"device": "cuda", "dtype": str(dtype).removeprefix("torch."), "attn": "sdpa"}
    assert Placement(CUDA, dtype, "sdpa").identity(options) == usual | expected
    on_cpu = Placement(torch.device("cpu"), dtype, "sdpa").identity(options)
    assert on_cpu == {**usual, "device": "cpu"}


def test_half_precision_of_vggt_is_the_same_on_the_cpu() -> None:
    vggt = tiny_model().vggt.to(torch.bfloat16)
    frames = tiny_frames(3)

    def seen(device: torch.device) -> list[torch.Tensor]:
        caches = [FrameCache(2, 2)]
        return [geometry_features(vggt, each[None].to(device), caches).cpu() for each in frames]

    with sdpa_kernel(SDPBackend.MATH):  # as it is taken apart on the pretended device
        expected = seen(torch.device("cpu"))
    with pretended():
        vggt.to(CUDA)
        found = seen(CUDA)
    for ours, theirs in zip(expected, found, strict=True):
        assert torch.equal(ours, theirs)
