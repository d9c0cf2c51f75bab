from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agents.scripted import StopAgent
from vlnbench.errors import UsageError
from vlnbench.rollout.agents import load_agent
from vlnbench.rollout.model_options import ModelOptions, RemoteOptions, ServedOptions
from vlnbench.util.loading import import_string
from vlnbench.util.trackers import TrackedRun, Trackers, parse_trackers


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("randm", "unknown agent 'randm': did you mean 'random'"),
        ("nowhere.module:Agent", "there is no module 'nowhere'"),
        ("agents.scripted:Nobody", "module agents.scripted has no 'Nobody'"),
        ("agents.table:AGENTS", "expected a class"),
        ("builtins:object", "not an agent, it lacks sensors, privileged"),
    ],
)
def test_wrong_agents_are_explained(name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_agent(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_import_string_loads_a_class() -> None:
    from agents.scripted import StopAgent

    assert isinstance(load_agent("agents.scripted:StopAgent"), StopAgent)
    assert import_string("agents.scripted:StopAgent") is StopAgent


@pytest.mark.slow
@pytest.mark.parametrize("package", ["agents", "envs"])
def test_another_distributions_package_is_recognised(tmp_path: Path, package: str) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", "from vlnbench.cli import main; raise SystemExit(main(['eval']))"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 2
    assert f"the package '{package}' that Python finds is not vlnbench's ({tmp_path / package}" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_agent_may_lie_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_agent.py").write_text(
        "from agents.scripted import StopAgent\n\nclass Mine(StopAgent):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert type(load_agent("my_agent:Mine")).__name__ == "Mine"


def test_a_tracker_may_lie_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tracker.py").write_text("from tests.fake_trackers import Recording as Mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    with Trackers(parse_trackers("my_tracker:Mine"), TrackedRun("a run", tmp_path, {})) as trackers:
        trackers.log({"SR": 0.5}, 1)
    assert '["log", 1, {"SR": 0.5}]' in (tmp_path / "told.jsonl").read_text().splitlines()


def test_model_options_reach_an_agent_that_takes_them_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
from agents.scripted import StopAgent

class Modelled(StopAgent):
    def __init__(self, options):
        super().__init__()
        self.options = options
"""
    (tmp_path / "modelled_agent.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = ModelOptions(checkpoint=tmp_path, dtype="bfloat16")
    agent = load_agent("modelled_agent:Modelled", options)
    assert getattr(agent, "options") is options  # noqa: B009
    with pytest.raises(UsageError, match="agent 'stop' loads no model: leave out --checkpoint, --dtype"):
        load_agent("stop", options)
    load_agent("stop", ModelOptions(max_batch=2))


class Modelled(StopAgent):
    def __init__(self, options: ModelOptions) -> None:
        super().__init__()


def test_options_of_parts_are_refused_by_agents_that_do_not_take_them() -> None:
    served = ModelOptions(served=ServedOptions(base_url="http://127.0.0.1:1", model="tiny"))
    with pytest.raises(UsageError, match=r"agent 'stop' loads no model: leave out --base-url, --model$"):
        load_agent("stop", served)
    with pytest.raises(UsageError, match=r"Modelled' takes other options: leave out --base-url, --model$"):
        load_agent(f"{__name__}:Modelled", served)
    with pytest.raises(UsageError, match=r"'remote://127.0.0.1:1' takes other options: leave out --checkpoint$"):
        load_agent("remote://127.0.0.1:1", ModelOptions(checkpoint=Path("here")))
    with pytest.raises(UsageError, match=r"no agent is served there"):
        load_agent("remote://127.0.0.1:1", ModelOptions(remote=RemoteOptions(remote_timeout=1.0)))
    with pytest.raises(UsageError, match=r"unknown agent 'remot': did you mean 'remote'"):
        load_agent("remot://127.0.0.1:1")
    with pytest.raises(UsageError, match=r"'stop://here': leave out what follows its name"):
        load_agent("stop://here")
