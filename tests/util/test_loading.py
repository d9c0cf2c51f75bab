from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from agents.remote_options import RemoteOptions
from agents.scripted import StopAgent
from agents.streamvln.options import StreamVLNOptions
from agents.table import AGENTS
from vlnbench.errors import UsageError
from vlnbench.rollout.agent_names import declared_options, find_agent, options_type
from vlnbench.rollout.agent_options import CheckpointOptions
from vlnbench.rollout.agents import load_agent
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

    assert isinstance(load_agent("agents.scripted:StopAgent"), StopAgent)
    assert import_string("agents.scripted:StopAgent") is StopAgent


@pytest.mark.slow
@pytest.mark.parametrize("package", ["agents", "envs"])
def test_another_distributions_package_is_recognized(tmp_path: Path, package: str) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", "from vlnbench.cli import main; raise SystemExit(main(['eval']))"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 2
    assert f"the package '{package}' that Python finds is not vlnbench's ({tmp_path / package}" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("package", ["agents", "envs"])
def test_python_m_beside_a_folder_of_that_name_is_as_the_command(tmp_path: Path, package: str) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "vlnbench", "list"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert "shortest-path" in result.stdout


def test_an_agent_may_lie_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_agent.py").write_text(
        "from agents.scripted import StopAgent\n\nclass Mine(StopAgent):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert type(load_agent("my_agent:Mine")).__name__ == "Mine"


def test_a_file_is_loaded_or_refused_but_never_another_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "twice_there.py").write_text(f"WHERE = {name!r}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "here"), *sys.path])
    assert import_string(f"{tmp_path}/here/twice_there.py:WHERE") == "here"
    with pytest.raises(UsageError, match=r"another module twice_there \(.*here/twice_there.py\) before this file"):
        import_string(f"{tmp_path}/there/twice_there.py:WHERE")
    (tmp_path / "here" / "random.py").write_text("Random = 1\n")
    with pytest.raises(UsageError, match="another module random"):
        import_string(f"{tmp_path}/here/random.py:Random")


def test_a_tracker_may_lie_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tracker.py").write_text("from tests.fake_trackers import Recording as Mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    with Trackers(parse_trackers(["my_tracker:Mine"]), TrackedRun("a run", tmp_path, {})) as trackers:
        trackers.log({"SR": 0.5}, 1)
    assert '["log", 1, {"SR": 0.5}]' in (tmp_path / "told.jsonl").read_text().splitlines()


SOURCE = """
from dataclasses import dataclass
from agents.scripted import StopAgent
from vlnbench.rollout.agent_options import CheckpointOptions

@dataclass(frozen=True, kw_only=True)
class Own(CheckpointOptions):
    width: int = 3

class Configured(StopAgent):
    options_type = Own

    def __init__(self, options):
        super().__init__()
        self.options = options

class Undeclared(StopAgent):
    def __init__(self, options, other=None):
        super().__init__()
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configured_agent.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("own_module")
def test_an_agents_options_are_of_the_type_that_its_class_names() -> None:
    kind = options_type("configured_agent:Configured")
    assert [each.name for each in fields(kind)][-1] == "width"
    options = replace(kind(), dtype="bfloat16")  # type: ignore[call-arg]
    agent: Any = load_agent("configured_agent:Configured", options)
    assert agent.options is options
    agent = load_agent("configured_agent:Configured", CheckpointOptions(max_batch=2))
    assert agent.options == kind(max_batch=2)
    assert load_agent("configured_agent:Configured").options == kind()  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"its constructor wants options; an agent with options names their type"):
        load_agent("configured_agent:Undeclared")


def test_options_that_an_agent_does_not_take_are_refused() -> None:
    asked = StreamVLNOptions(checkpoint=Path("here"), dtype="bfloat16", max_batch=2)
    with pytest.raises(UsageError, match=r"agent 'stop' takes other options: leave out --checkpoint, --dtype$"):
        load_agent("stop", asked)
    load_agent("stop", StreamVLNOptions(max_batch=2))
    with pytest.raises(UsageError, match=r"'remote://127.0.0.1:1' takes other options: leave out --checkpoint$"):
        load_agent("remote://127.0.0.1:1", StreamVLNOptions(checkpoint=Path("here")))
    with pytest.raises(UsageError, match=r"no agent is served there"):
        load_agent("remote://127.0.0.1:1", RemoteOptions(remote_timeout=1.0))
    with pytest.raises(UsageError, match=r"unknown agent 'remot': did you mean 'remote'"):
        load_agent("remot://127.0.0.1:1")
    with pytest.raises(UsageError, match=r"'stop://here': leave out what follows its name"):
        load_agent("stop://here")


@pytest.mark.parametrize("name", AGENTS)
def test_the_table_names_the_options_that_the_class_names(name: str) -> None:
    agent, _ = find_agent(name)
    assert declared_options(import_string(agent)) is options_type(name)


def test_options_load_nothing_heavy() -> None:
    code = """
import sys
from vlnbench.rollout.agent_names import agent_names, options_type
for name in agent_names():
    options_type(name)
print([name for name in ("torch", "numpy", "transformers", "PIL", "tyro") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
