"""A GPU without room changes no score: fewer episodes at once, or a stop that says what would help."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from agents.scripted import RandomAgent
from tests import served
from tests.fakes import PlaneEnv
from tests.rollout.test_engine import _end_pools, plan, ready, run, timeless  # noqa: F401
from vlnbench.cli import main
from vlnbench.errors import GpuMemoryError
from vlnbench.evaluation.evaluate import Execution, evaluate
from vlnbench.evaluation.records import read_attempts, read_rows
from vlnbench.evaluation.status import format_status, read_status
from vlnbench.interfaces import Action, Episode, Observation
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.executor import EnvSetup, Limits
from vlnbench.rollout.inline import Inline
from vlnbench.rollout.replicas import LocalLauncher, Replicas
from vlnbench.util.gpu_memory import is_gpu_memory, shortages

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24 GiB"


class Crowded(RandomAgent):
    """Walks at random, on a GPU with room for so many episodes at once."""

    fits, episode_bytes = 2, 5 * 10**9

    def __init__(self, fits: int = fits) -> None:
        super().__init__()
        self.fits = fits
        self.sizes: list[int] = []
        self.begun: list[str] = []

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self.begun.append(episode.episode_id)
        super().reset(slot, episode, seed)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        self.sizes.append(len(observations))
        if len(observations) > self.fits:
            raise torch.OutOfMemoryError(FULL)
        return super().act(observations)


class NoRoom(Crowded):
    fits = 0

    def __init__(self) -> None:
        super().__init__(0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    evaluate(plan(), Inline(RandomAgent(), PlaneEnv()), folder)
    return folder


@pytest.fixture(autouse=True)
def _none_before() -> None:
    shortages()


def test_batches_are_halved_and_rows_stay_the_same(
    tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = Crowded()
    run(tmp_path, agent, envs=8, max_batch=8)
    assert timeless(tmp_path) == timeless(undisturbed)
    too_large = [size for size in agent.sizes if size > 2]
    assert 1 <= len(too_large) <= 2
    assert max(agent.sizes[agent.sizes.index(too_large[-1]) + 1 :]) == 2
    assert len(agent.begun) <= 12 + sum(too_large)
    (attempt,) = read_attempts(tmp_path)
    assert attempt["gpu_memory"] == [
        f"out of GPU memory with {size} episodes at once: going on with {-(-size // 2)}" for size in too_large
    ]
    assert attempt["gpu_memory"][0] in capsys.readouterr().err


def test_an_episode_that_does_not_fit_alone_ends_the_run_without_a_row(tmp_path: Path) -> None:
    with pytest.raises(GpuMemoryError) as stopped:
        run(tmp_path, Crowded(0), envs=3, max_batch=1)
    assert "Tried to allocate 2.00 GiB" in str(stopped.value)
    assert "--envs 1 keeps the memory of 1 episode instead of 3, up to 10.0 GB less" in str(stopped.value)
    assert read_rows(tmp_path) == []
    (attempt,) = read_attempts(tmp_path)
    assert (attempt["status"], attempt["reason"]) == ("oom", str(stopped.value))
    assert "stopped: out of GPU memory" in format_status(read_status(tmp_path))
    run(tmp_path, Crowded(1), envs=3, max_batch=1)
    assert len(read_rows(tmp_path)) == 12


@pytest.mark.slow
def test_the_same_in_this_process_and_in_replicas(tmp_path: Path) -> None:
    with pytest.raises(GpuMemoryError, match="with one episode"):
        evaluate(plan(), Inline(Crowded(0), PlaneEnv()), tmp_path / "here")
    with Replicas(LocalLauncher(1), 1, 1) as replicas:
        loaded = replicas.load(f"{__name__}:NoRoom", AgentOptions())
        replicas.set_up(EnvSetup("tests.faulty:FaultyEnv", (), loaded.sensors))
        with pytest.raises(GpuMemoryError, match="with one episode at a time"):
            evaluate(plan(f"{__name__}:NoRoom"), replicas, tmp_path / "there")
    assert read_rows(tmp_path / "here") == read_rows(tmp_path / "there") == []


@pytest.mark.slow
def test_what_a_served_agent_has_no_room_for(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLNBENCH_TOKEN", "any")
    with served.serving(Crowded(), max_slots=8) as address:
        execution = Execution(Limits(8))
        evaluate(plan(), ready(4, served.connected(address)), tmp_path / "halved", execution=execution)
    assert timeless(tmp_path / "halved") == timeless(undisturbed)
    with served.serving(Crowded(0)) as address, pytest.raises(GpuMemoryError, match="Tried to allocate"):
        evaluate(plan(), ready(2, served.connected(address)), tmp_path / "none", execution=Execution(Limits(2)))
    assert read_rows(tmp_path / "none") == []


def test_the_command_line_says_what_is_lacking(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later")

    monkeypatch.setattr("vlnbench.cli.selected.parse", full)
    assert main([]) == 3
    assert capsys.readouterr().err == "vlnbench: out of GPU memory: CUDA error: out of memory\n"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (FULL, True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        (
            "NCCL error in: NCCLUtils.hpp:125, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
            True,
        ),
        ("Triton Error [CUDA]: out of memory", True),
        ("HIP out of memory. Tried to allocate 2 MiB", True),
        ("CUDA error: an illegal memory access was encountered", False),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes", False),
        ("the worker ran out of memory", False),
    ],
)
def test_how_libraries_say_it(said: str, expected: bool) -> None:
    assert is_gpu_memory(RuntimeError(said)) is expected
