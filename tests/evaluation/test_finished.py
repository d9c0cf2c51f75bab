"""A complete run is shown again without its agent, as long as nothing that it was made from has changed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import StopAgent
from tests.fakes import PlaneEnv
from tests.runs import nine_episodes, write_dataset
from vlnbench.errors import UsageError
from vlnbench.evaluation.options import EvalOptions
from vlnbench.evaluation.records import ROWS
from vlnbench.evaluation.session import Evaluated, carry_out
from vlnbench.util.durable.receipt import RECEIPT

pytestmark = pytest.mark.slow
HERE = "tests.evaluation.test_finished"
MADE: list[str] = []


class FiledAgent(StopAgent):
    """An agent that is made of a file, and notes that it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.files = (Path(os.environ["WEIGHTS"]),)
        self.identity = {"weights": self.files[0].read_text()}
        MADE.append(self.files[0].read_text())


class Plane(PlaneEnv):
    """A free plane, whatever the scene."""

    def __init__(self, *_: Any) -> None:
        super().__init__()


@pytest.fixture
def request_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EvalOptions:
    MADE.clear()
    weights = tmp_path / "model" / "weights"
    weights.parent.mkdir()
    weights.write_text("1")
    monkeypatch.setenv("WEIGHTS", str(weights))
    monkeypatch.chdir(tmp_path)
    episodes = [replace(episode, instruction_id=episode.episode_id) for episode in nine_episodes()]
    root = write_dataset(tmp_path / "data", "rxr-ce", episodes)
    return EvalOptions(
        agent=f"{HERE}:FiledAgent",
        env=f"{HERE}:Plane",
        benchmark="rxr-ce",
        data_root=root,
        envs=1,
        allow_partial=True,
        out=tmp_path / "run",
    )


def essence(done: Evaluated) -> tuple[Any, ...]:
    return done.folder, done.summary, [episode.episode_id for episode in done.plan.episodes]


def test_the_agent_is_not_made_again(request_of: EvalOptions) -> None:
    first = carry_out(request_of)
    assert MADE == ["1"]
    again = carry_out(request_of)
    assert MADE == ["1"]
    assert essence(again) == essence(first)


def test_in_the_default_folder(request_of: EvalOptions) -> None:
    request = replace(request_of, out=None)
    assert essence(carry_out(request)) == essence(carry_out(request))
    assert MADE == ["1"]


def test_other_weights_are_another_run(request_of: EvalOptions) -> None:
    request = replace(request_of, out=None)
    first = carry_out(request)
    Path(os.environ["WEIGHTS"]).write_text("22")
    second = carry_out(request)
    assert MADE == ["1", "22"]
    assert second.folder != first.folder
    assert second.summary.identity.agent_identity == {"weights": "22"}


@pytest.mark.parametrize("change", [{"seed": 1}, {"repeats": 2}, {"episodes": 3}, {"sim": "embedded"}])
def test_another_wish_is_another_run(request_of: EvalOptions, change: dict[str, Any]) -> None:
    request = replace(request_of, out=None)
    carry_out(request)
    carry_out(replace(request, **change))
    assert MADE == ["1", "1"]


def test_a_row_that_is_gone_is_run_again(request_of: EvalOptions) -> None:
    first = carry_out(request_of)
    path = first.folder / ROWS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    again = carry_out(request_of)
    assert MADE == ["1", "1"]
    assert again.summary.n_done == len(lines)


def test_agents_that_cannot_name_their_files_leave_no_receipt(request_of: EvalOptions) -> None:
    done = carry_out(replace(request_of, agent="stop"))
    assert not (done.folder / RECEIPT).exists()
    receipt = done.folder / RECEIPT
    receipt.write_text(json.dumps({"state": "0", "files": []}))
    assert carry_out(replace(request_of, agent="stop")).summary == done.summary


def test_an_environment_of_ones_own_is_part_of_the_run(
    request_of: EvalOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that derives from a shipped one has its simulator's name."""
    (tmp_path / "plain.py").write_text("DEPTH = 1\n")
    text = f"import plain\nfrom {HERE} import Plane\n\n\nclass Mine(Plane):\n    pass\n"
    (tmp_path / "own_plane.py").write_text(f"{text}\n\nclass Other(Mine):\n    pass\n")
    request = replace(request_of, env="own_plane:Mine")
    first = carry_out(request)
    assert first.summary.identity.simulator.startswith("plane-1, own_plane:Mine ")
    assert essence(carry_out(request)) == essence(first)
    assert MADE == ["1"]
    by_path = carry_out(replace(request, env="./own_plane.py:Mine"))
    assert by_path.summary == first.summary
    with pytest.raises(UsageError, match=r"holds another run: simulator .*own_plane:Mine .*own_plane:Other"):
        carry_out(replace(request, env="own_plane:Other"))
    (tmp_path / "plain.py").write_text("DEPTH = 22\n")
    with pytest.raises(UsageError, match=r"holds another run: simulator .*own_plane:Mine .*own_plane:Mine"):
        carry_out(request)
