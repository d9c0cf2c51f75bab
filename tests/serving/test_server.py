"""What is served, to whom, and how it ends: options, ports, tokens, signals, and the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.base import EpisodeAgent
from agents.remote import RemoteAgent
from agents.scripted import GroundTruthReplayAgent, RandomAgent, ShortestPathAgent, StopAgent
from tests.fakes import make_episode
from tests.runs import write_dataset
from tests.served import connected, plan, serving, timeless
from vlnbench.cli import main
from vlnbench.errors import LostBatchError, UsageError
from vlnbench.evaluation import session
from vlnbench.interfaces import Action, Agent, Answer, Observation
from vlnbench.rollout.answers import told
from vlnbench.serving.options import ServeOptions
from vlnbench.serving.serve import AgentServer, run_serve

ROOT = Path(__file__).parents[2]


def test_privileged_agents_are_not_served() -> None:
    with pytest.raises(UsageError, match="'gt-replay' is shown goals and paths, and those stay in the evaluation"):
        AgentServer(GroundTruthReplayAgent(), ServeOptions("gt-replay"))
    with serving(ShortestPathAgent(), "shortest-path") as address:
        connected(address).close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 70000}, "--port 70000: expected 0 to 65535"),
        ({"max_slots": 0}, "--max-slots 0: expected 1 or more"),
        ({"max_message_mb": 0}, "--max-message-mb 0: expected 1 or more"),
        ({"answer_timeout": 0.0}, "--answer-timeout 0.0: expected a number above 0"),
        ({"host": "0.0.0.0"}, "--host 0.0.0.0: others can reach it; set a token"),
        ({"agent": "stopp"}, "did you mean 'stop'"),
    ],
)
def test_impossible_requests_are_refused(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLNBENCH_TOKEN", raising=False)
    with pytest.raises(UsageError, match=message):
        run_serve(ServeOptions(**{"agent": "stop", **options}))


def test_a_taken_port_is_a_user_mistake() -> None:
    with serving(StopAgent(), "stop") as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(UsageError, match=f"--port {port}: cannot listen there"):
            run_serve(ServeOptions("stop", port=port))


def test_a_server_on_this_machine_is_for_its_user_only(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any setting: the command takes the token of the user's file, and so do clients of the user."""
    tokens: list[str] = []

    class Served(AgentServer):
        def __init__(self, agent: Agent, request: ServeOptions, token: str = "") -> None:
            tokens.append(token)
            super().__init__(agent, request, token)

        def run(self, beat: object = None) -> None:
            connecting = threading.Thread(target=lambda: connected(self.address).close())
            acting = threading.Thread(target=super().run)
            for thread in (acting, connecting):
                thread.start()
            connecting.join()
            monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home / "of another user"))
            with pytest.raises(UsageError, match="the token is missing or wrong; set the same one"):
                connected(self.address)
            self.stop()
            acting.join()

    monkeypatch.setattr("vlnbench.serving.serve.AgentServer", Served)
    run_serve(ServeOptions("random", port=0))
    assert tokens == [(cache_home / "vlnbench" / "token").read_text()]
    assert len(tokens[0]) == 64


def test_a_token_that_others_can_read_is_refused_on_both_ends(cache_home: Path) -> None:
    path = cache_home / "vlnbench" / "token"
    path.parent.mkdir()
    path.write_text("known to all")
    path.chmod(0o644)
    with serving(RandomAgent()) as address:
        for use in (lambda: run_serve(ServeOptions("random", port=0)), lambda: connected(address).close()):
            with pytest.raises(UsageError) as caught:
                use()
            assert str(caught.value).startswith(
                f"{path}: others can read the token in it; chmod 600 or remove it; or"
            )
            assert "VLNBENCH_TOKEN" in str(caught.value)


def test_without_a_place_for_a_token_one_must_be_set(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache_home / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home / "file"))
    with pytest.raises(
        UsageError, match=r"file/vlnbench: .*; or set a token in the environment as VLNBENCH_TOKEN"
    ):
        run_serve(ServeOptions("random", port=0))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_ends_cleanly_when_interrupted(number: int) -> None:
    script = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script += "from vlnbench.cli import main; sys.exit(main(['serve', '--agent', 'random', '--port', '0']))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    address = line.split(" at ")[1].split(";")[0]
    client = connected(address)
    client.reset(0, plan().episodes[0], 1)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=120)
    assert (process.returncode, stdout, stderr) == (0, "", "the server has ended\n")
    client.close()


def test_connected_agents_are_agents() -> None:
    with serving(RandomAgent()) as address:
        client = connected(address)
        assert isinstance(client, RemoteAgent)
        assert isinstance(client, Agent)
        client.close()
        client.close()


class Speaker(EpisodeAgent):
    def act_one(self, observation: Observation) -> Action:
        self.say(f"step {observation.step}", actions=[Action.STOP] * 2, images=3, log_probability=-0.25)
        return Action.MOVE_FORWARD


@pytest.mark.parametrize("served", ["in a list", {"text": 3}, {"actions": [9]}, None])
def test_what_a_served_model_says_arrives_and_is_no_error(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Speaker()) as address:
        agent = connected(address)
        for slot in (0, 3):
            agent.reset(slot, make_episode(slot), 1)
        agent.act({slot: Observation("Go.", 5, pose=None) for slot in (0, 3)})
        for slot in (0, 3):
            said = Answer("step 5", (Action.STOP,) * 2, images=3, log_probability=-0.25)
            assert told(agent, slot, [Action.MOVE_FORWARD]) == [said]
            assert agent.answered(slot) == []
        if served is not None:
            monkeypatch.setattr("vlnbench.serving.serve.asdict", lambda answer: served)
            assert agent.act({0: Observation("Go.", 6)}) == {0: Action.MOVE_FORWARD}
            (note,) = told(agent, 0, [Action.MOVE_FORWARD])
            assert "field 'answers" in note.note
        agent.close()


@pytest.mark.slow
def test_the_command_line_runs_a_served_agent_like_a_local_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "ensure_data", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "data")
    options = ["--envs", "1", "--allow-partial", "--env", "tests.faulty:plane"]
    assert main(["eval", "--agent", "random", *options]) == 0
    with serving(RandomAgent(), token="sesame") as address:
        capsys.readouterr()
        assert main(["eval", "--agent", address, *options]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        advice = "set the same one in the environment of both ends as VLNBENCH_TOKEN"
        assert line == f"vlnbench: error: {address}: the token is missing or wrong; {advice}"
        monkeypatch.setenv("VLNBENCH_TOKEN", "sesame")
        assert main(["eval", "--agent", address, *options, "--out", "there"]) == 0
    (here,) = (tmp_path / "runs/houses-r2r/val_unseen").iterdir()
    assert timeless(tmp_path / "there") == timeless(here)
    capsys.readouterr()
    assert main(["eval", "--agent", address, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"vlnbench: error: {address}: no agent is served there (")


@pytest.mark.slow
def test_a_server_that_hangs_is_given_up_even_while_sending() -> None:
    script = "from vlnbench.cli import main; main(['serve', '--agent', 'random', '--port', '0'])"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        client = connected(process.stderr.readline().split(" at ")[1].split(";")[0], timeout=3.0)
        client.reset(0, plan().episodes[0], 1)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(LostBatchError, match="the agent gave no answer"):
            client.act({0: Observation("Go.", 0, rgb=np.zeros((2000, 4000, 3), np.uint8))})
        process.kill()
