from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from vlnbench.errors import UsageError
from vlnbench.training import setup
from vlnbench.training.setup import Process, settle_threads, share_cores
from vlnbench.util.threads import EXPLICIT

ALONE = Process(0, 0, 1, torch.device("cpu"))


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*EXPLICIT, "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(setup, "cores", lambda: 4)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


class Work:
    """Counts how often it is done, and with how many threads at most."""

    def __init__(self) -> None:
        self.done, self.most = 0, 0

    def __call__(self) -> None:
        self.done += 1
        self.most = max(self.most, torch.get_num_threads())


def recorded(path: Path) -> int:
    return int(json.loads(path.read_text())["threads"])


def test_a_resumed_run_keeps_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, work = tmp_path / "threads.json", Work()
    monkeypatch.setattr(setup, "fastest", lambda work, use, most: work() or 3)
    settle_threads(path, ALONE, work)
    assert (recorded(path), torch.get_num_threads(), work.done) == (3, 3, 1)
    torch.set_num_threads(4)
    settle_threads(path, ALONE, work)
    assert (recorded(path), torch.get_num_threads(), work.done) == (3, 3, 1)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "PyTorch's threads per process: 3 (fastest of 1 to 4)"
    assert second == "PyTorch's threads per process: 3 (as the run was begun)"


def test_the_users_number_wins_and_a_change_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, work = tmp_path / "threads.json", Work()
    monkeypatch.setenv("OMP_NUM_THREADS", "4")  # as PyTorch has taken it when it was imported
    settle_threads(path, ALONE, work)
    torch.set_num_threads(2)
    settle_threads(path, ALONE, work)
    assert (recorded(path), torch.get_num_threads(), work.done) == (4, 2, 0)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "PyTorch's threads per process: 4 (by OMP_NUM_THREADS)"
    assert second.endswith("2 (by OMP_NUM_THREADS; the run was begun with 4, so the last digits may differ)")


def test_processes_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    settle_threads(tmp_path / "threads.json", ALONE, work)
    assert work.done > 1
    assert recorded(tmp_path / "threads.json") <= 2


def test_an_objective_without_a_rehearsal_keeps_what_there_is(tmp_path: Path) -> None:
    settle_threads(tmp_path / "threads.json", ALONE, None)
    assert recorded(tmp_path / "threads.json") == torch.get_num_threads() == 4


@pytest.mark.parametrize("content", ['{"threads": 0}', '{"threads": "2"}', "{}", '{"threads": 100000}'])
def test_a_damaged_record_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "threads.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"threads\.json: field 'threads': expected a number from 1 to 4,096"):
        settle_threads(path, ALONE, None)


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        ({"LOCAL_WORLD_SIZE": "2"}, 2),
        ({"LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}, 2),
        ({"LOCAL_WORLD_SIZE": "8", "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}, 1),
        ({"LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "3", "TORCHELASTIC_RUN_ID": "none"}, 3),
        ({"OMP_NUM_THREADS": "1"}, 1),
    ],
)
def test_cores_are_shared_where_the_host_updates_weights(
    given: dict[str, str], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torchrun gives every process a single thread, which is not the user's word."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    torch.set_num_threads(int(given.get("OMP_NUM_THREADS", "4")))  # as torch takes it
    share_cores(Process(0, 0, 2, torch.device("cuda", 0)))
    assert torch.get_num_threads() == threads
