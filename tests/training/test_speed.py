"""What the log says of speed: operations counted by what goes through layers, and the time of talking."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.agents.streamvln.test_samples import make_folder
from vlnbench.training.run.speed import Communication, Operations
from vlnbench.training.watch import COLLECTIVES
from vlnbench.util.monitor import training_note

ROWS, WIDTH = 3, 8
ONE = 2 * ROWS * WIDTH * WIDTH
"""Operations of one layer in one direction."""


class Three(nn.Module):
    """Three layers, of which the last two may be computed again."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self._again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        made: torch.Tensor = checkpoint(self.second, x, use_reentrant=False) if self._again else self.second(x)
        return made


@pytest.mark.parametrize(
    ("again", "frozen", "layers"),
    [
        # forward of all; their weights, and what goes from the third to the second and from there to the first
        (False, (), 3 + 3 + 2),
        # the second once more, and no gradient twice; of the third nothing is needed that it would compute
        (True, (), 3 + 3 + 2 + 1),
        # nothing goes to the first
        (False, ("first",), 3 + 2 + 1),
        # the others hand on what the first needs
        (False, ("second",), 3 + 1 + 2),
    ],
)
def test_operations_are_those_that_are_done(again: bool, frozen: tuple[str, ...], layers: int) -> None:
    model = Three(again)
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    counted = Operations(model)
    model(torch.ones(ROWS, WIDTH)).sum().backward()
    assert counted.take() == layers * ONE
    with torch.no_grad():
        model(torch.ones(ROWS, WIDTH))
    assert counted.take() == 3 * ONE
    assert counted.take() == 0


def test_waiting_for_others_is_timed_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Work:
        def wait(self) -> None:
            time.sleep(0.1)

        def is_completed(self) -> bool:
            return True

    def all_reduce(tensor: object, async_op: bool = False) -> Work | None:
        time.sleep(0.05)
        return Work() if async_op else None

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    before = {name: getattr(torch.distributed, name) for name in COLLECTIVES}
    with Communication(torch.device("cpu")) as talked:
        torch.distributed.all_reduce(torch.ones(1))
        assert 0.05 <= talked.take() < 0.1
        work = torch.distributed.all_reduce(torch.ones(1), async_op=True)
        assert work is not None
        assert work.is_completed()
        work.wait()
        assert 0.15 <= talked.take() < 0.3
        assert talked.take() == 0
    assert before == {name: getattr(torch.distributed, name) for name in COLLECTIVES}


def test_a_line_of_the_log_is_shown_with_its_speed() -> None:
    """The published figures of a JanusVLN training on eight H800: 278 TFLOP a sample, 8 samples in 77.86 s."""
    entry = {"loss": 1.0, "windows_per_s": 64 / 77.86, "seconds": {"load": 30.0, "backward": 47.86}}
    entry |= {"tflops": 28.5, "card_share": 0.0288, "communication": 7.8}
    shown = training_note(entry)
    assert "28.5 TFLOPS (3 % of the card)" in shown
    assert "of that 10 % communication" in shown
    assert "% of the card" not in training_note({**entry, "card_share": None})


@pytest.mark.slow
def test_two_processes_say_how_long_they_talk(tmp_path: Path) -> None:
    sets = tmp_path / "sets"
    make_folder(sets / "R2R", [9, 9, 9, 9], ["Go."])
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = ["--checkpoint", "preset:streamvln-tiny", "--trajectories", sets, "--out", tmp_path / "run"]
    options += ["--steps", "2", "--batch", "1", "--accumulation", "1", "--log-every", "1", "--workers", "0"]
    subprocess.run(
        [*launched, "-m", "vlnbench", "train", *map(str, options)], check=True, timeout=300, capture_output=True
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "train_log.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    for line in lines:
        assert 0 < line["communication"] < sum(line["seconds"].values()) + 5
        assert "tflops" not in line
