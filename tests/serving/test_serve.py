"""Serving an agent, and what an evaluation makes of it: the same rows as without the wire, whatever breaks."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from agents.base import EpisodeAgent
from agents.scripted import RandomAgent, StopAgent
from tests.fakes import PlaneEnv
from tests.faulty import BreaksOnFive, KeepsFrames
from tests.served import connected, plan, processes, run, serving, timeless
from vlnbench.errors import RunError, UsageError
from vlnbench.evaluation.evaluate import Execution, evaluate
from vlnbench.evaluation.records import MANIFEST, read_rows
from vlnbench.interfaces import Action, Conventions, Episode, Observation
from vlnbench.rollout.executor import Limits
from vlnbench.rollout.inline import Inline
from vlnbench.serving.options import ServeOptions
from vlnbench.serving.serve import AgentServer, _Turn


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local") / "run"
    evaluate(plan(), Inline(RandomAgent(), PlaneEnv()), folder)
    return folder


class Random(RandomAgent):
    """Counts its steps, notes its batches, and can be made slow or told to end."""

    def __init__(self, delay_s: float = 0.0) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.delay_s = delay_s

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        self.batches.append(len(observations))
        time.sleep(self.delay_s)
        return super().act(observations)


def test_rows_and_identity_are_those_of_the_local_agent(tmp_path: Path, local: Path) -> None:
    with serving(RandomAgent()) as address:
        agent = connected(address)
        evaluate(plan(), Inline(agent, PlaneEnv()), tmp_path)
        agent.close()
    assert timeless(tmp_path) == timeless(local)
    here, there = (json.loads((folder / MANIFEST).read_text()) for folder in (local, tmp_path))
    assert there["identity"] == here["identity"]
    assert there["agent_place"]["address"] == address
    assert "agent_place" not in here


def test_a_run_can_be_begun_here_and_ended_there(tmp_path: Path, local: Path) -> None:
    def after_three(row: object, done: int, planned: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(plan(), Inline(RandomAgent(), PlaneEnv()), tmp_path, after_three)
    with serving(RandomAgent()) as address:
        evaluate(plan(), Inline(connected(address), PlaneEnv()), tmp_path)
    assert timeless(tmp_path) == timeless(local)


def test_clients_share_batches_and_not_rows(tmp_path: Path, local: Path) -> None:
    agent = Random(delay_s=0.002)

    def one(number: int) -> None:
        client = connected(address)
        evaluate(plan(), Inline(client, PlaneEnv()), tmp_path / str(number))
        client.close()

    with serving(agent) as address, ThreadPoolExecutor(3) as pool:
        list(pool.map(one, range(3)))
    for number in range(3):
        assert timeless(tmp_path / str(number)) == timeless(local)
    assert max(agent.batches) == 3


def test_many_slots_of_one_client(tmp_path: Path, local: Path) -> None:
    agent = Random()
    with serving(agent, max_batch=2) as address:
        client = connected(address)
        run(tmp_path, client, envs=3, max_batch=3)
        client.close()
    assert timeless(tmp_path) == timeless(local)
    assert max(agent.batches) <= 2


def test_frames_arrive_as_they_were_and_stay(tmp_path: Path) -> None:
    with serving(KeepsFrames(), "frames") as address:
        client = connected(address)
        run(tmp_path, client, factory="tests.faulty:PictureEnv", max_batch=2)
        client.close()
    assert [row.status for row in read_rows(tmp_path)] == ["ok"] * 6


def test_poses_and_oracle_actions_travel(tmp_path: Path) -> None:
    class Knows(EpisodeAgent):
        sensors = frozenset({"pose", "oracle_action"})

        def act_one(self, observation: Observation) -> Action:
            assert observation.pose is not None
            np.testing.assert_allclose(observation.pose.position[2], -0.25 * observation.step)
            assert observation.rgb is None
            return Action.MOVE_FORWARD if observation.step < 4 else Action.STOP

    with serving(Knows(), "knows") as address:
        client = connected(address)
        evaluate(plan("knows"), Inline(client, PlaneEnv()), tmp_path)
        client.close()
    assert json.loads((tmp_path / MANIFEST).read_text())["agent_privileged"]
    assert {row.status for row in read_rows(tmp_path)} == {"ok"}


def test_an_exception_costs_its_episode_only_and_no_other_client(tmp_path: Path) -> None:
    """Episode 5 breaks the batch that episodes of two clients share; each client has one slot at a time."""
    evaluate(plan("breaks"), Inline(BreaksOnFive(), PlaneEnv()), tmp_path / "local")

    def one(number: int) -> None:
        client = connected(address)
        with processes(client, 1) as executor:
            evaluate(plan("breaks"), executor, tmp_path / str(number))
        client.close()

    with serving(BreaksOnFive(), "breaks") as address, ThreadPoolExecutor(2) as pool:
        list(pool.map(one, range(2)))
    expected = [line for line in timeless(tmp_path / "local") if "ArithmeticError" not in line]
    for number in range(2):
        lines = timeless(tmp_path / str(number))
        assert [line for line in lines if "ArithmeticError" not in line] == expected
        (failed,) = [row for row in read_rows(tmp_path / str(number)) if row.failed]
        assert failed.episode_id == "5"
        assert "ArithmeticError: logits are NaN (faulty.py:" in str(failed.reason)


def test_a_restarted_server_costs_no_row(tmp_path: Path, local: Path) -> None:
    with serving(RandomAgent()) as address:
        client = connected(address)
    rows: list[object] = []
    stage = threading.Event()

    def second() -> None:
        with serving(RandomAgent(), port=int(address.rpartition(":")[2])):
            stage.wait(60)

    def on_row(row: object, done: int, planned: int) -> None:
        rows.append(row)

    thread = threading.Thread(target=second)
    timer = threading.Timer(0.5, thread.start)
    timer.start()
    with processes(client, 2) as executor:
        evaluate(plan(), executor, tmp_path, on_row, Execution(Limits(2)))
    client.close()
    stage.set()
    thread.join()
    assert timeless(tmp_path) == timeless(local)


def test_a_connection_that_ends_in_the_middle_costs_no_row(tmp_path: Path, local: Path) -> None:
    class Drops(Random):
        def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
            if len(self.batches) == 40:
                for connection in server._open():
                    connection.socket.shutdown(socket.SHUT_RDWR)
            return super().act(observations)

    request = ServeOptions("random", port=0)
    with AgentServer(Drops(), request) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        client = connected(server.address)
        run(tmp_path, client, max_batch=2)
        client.close()
        server.stop()
        thread.join()
    assert timeless(tmp_path) == timeless(local)


def test_a_server_that_stays_away_stops_the_run_resumably(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(RandomAgent()) as address:
        client = connected(address, reconnect=0.3)
        client.reset(0, plan().episodes[0], 1)
    with pytest.raises(
        RunError, match=r"the served agent is gone .* did not come back within 0.3 s; serve it again"
    ):
        run(tmp_path, client)
    assert capsys.readouterr().err.count("waiting for it for up to 0.3 s (--reconnect)") == 1
    assert read_rows(tmp_path) == []


def test_a_server_that_is_ending_begins_no_episode(tmp_path: Path) -> None:
    with AgentServer(RandomAgent(), ServeOptions("random", port=0)) as server:
        client = connected(server.address, reconnect=0.3)
        server._end()  # it still listens, and the connection is open
        with pytest.raises(RunError, match=r"did not come back within 0.3 s"):
            run(tmp_path, client)
    assert read_rows(tmp_path) == []


def test_another_agent_in_its_place_is_refused() -> None:
    with serving(RandomAgent()) as address:
        client = connected(address)
    with (
        serving(StopAgent(), "stop", port=int(address.rpartition(":")[2])),
        pytest.raises(UsageError, match=r"another agent is served there now \(other name\)"),
    ):
        client.reset(0, plan().episodes[0], 1)


def test_a_slow_agent_is_an_error_row_after_a_second_try(tmp_path: Path) -> None:
    agent = Random(delay_s=1.0)
    with serving(agent) as address:
        client = connected(address, timeout=0.4)
        with processes(client, 1) as executor:
            evaluate(plan(count=1), executor, tmp_path)
        client.close()
    (row,) = read_rows(tmp_path)
    assert row.status == "error"
    assert "the agent gave no answer (timed out" in str(row.reason) or "cannot begin" in str(row.reason)
    assert len(agent.batches) >= 2


def test_slots_of_clients_that_vanish_are_free_again() -> None:
    with serving(RandomAgent(), max_slots=2) as address:
        for _ in range(5):
            client = connected(address)
            for slot in (7, 9):
                client.reset(slot, plan().episodes[0], 1)
            client._client._socket.socket.shutdown(socket.SHUT_RDWR)  # no closing handshake
            deadline = time.monotonic() + 60
            while True:
                other = connected(address)
                try:
                    other.reset(0, plan().episodes[0], 1)
                    break
                except UsageError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
                finally:
                    other.close()


def test_more_episodes_than_slots_are_refused() -> None:
    with serving(RandomAgent(), max_slots=1) as address:
        client = connected(address)
        client.reset(0, plan().episodes[0], 1)
        with pytest.raises(UsageError, match="no free slot: too many episodes at a time"):
            client.reset(1, plan().episodes[0], 1)


def test_conventions_are_checked_as_for_local_agents(tmp_path: Path) -> None:
    class WantsSquare(StopAgent):
        expects = Conventions(width=224, height=224, turn_deg=15.0)

    with serving(WantsSquare(), "square") as address:
        client = connected(address)
        assert client.expects == WantsSquare.expects
        with pytest.raises(UsageError, match=r"needs width 224 \(it has 640\), height 224 \(it has 480\);"):
            evaluate(plan("square"), Inline(client, PlaneEnv()), tmp_path / "run")
        client.close()


def test_a_usage_error_there_is_one_here(tmp_path: Path) -> None:
    class NeedsFile(StopAgent):
        def begin(self, episode: Episode, seed: int) -> None:
            raise UsageError("weights.safetensors: missing")

    with serving(NeedsFile(), "needs") as address:
        client = connected(address)
        with pytest.raises(UsageError, match=r"weights.safetensors: missing$"):
            evaluate(plan("needs"), Inline(client, PlaneEnv()), tmp_path / "run")
        client.close()


def test_what_an_agent_counts_travels(tmp_path: Path) -> None:
    class Counts(Random):
        def report(self, slot: int) -> dict[str, float]:
            return {"answers": len(self.batches)}

    evaluate(plan(count=3), Inline(Counts(), PlaneEnv()), tmp_path / "local")
    with serving(Counts(), "random") as address:
        client = connected(address)
        evaluate(plan(count=3), Inline(client, PlaneEnv()), tmp_path / "remote")
        client.close()
    assert timeless(tmp_path / "remote") == timeless(tmp_path / "local")
    summary = json.loads((tmp_path / "remote/summary.json").read_text())
    rows = read_rows(tmp_path / "remote")
    assert summary["report"]["answers"] == sum(row.report["answers"] for row in rows) > 3


def test_messages_over_the_limit_are_refused() -> None:
    observation = Observation("Go.", 0, rgb=np.zeros((480, 1024, 3), np.uint8))
    with serving(RandomAgent(), max_message_mb=1) as address:
        client = connected(address)
        client.reset(0, plan().episodes[0], 1)
        with pytest.raises(UsageError, match=r"at most 1 MiB, and one observation has 1.4; serve with a larger"):
            client.act({0: observation})
        raw = client._client
        with pytest.raises(Exception, match="1009"):
            raw.act({0: {"instruction": "Go.", "step": 0, "rgb": observation.rgb}})
        again = connected(address)  # the server is as well as before
        again.reset(0, plan().episodes[0], 1)
        assert set(again.act({0: Observation("Go.", 0)})) == {0}
        again.close()


def test_several_frames_go_in_as_many_messages_as_they_need() -> None:
    frame = np.zeros((240, 320, 3), np.uint8)
    agent = Random()
    with serving(agent, max_message_mb=1) as address:
        client = connected(address)
        for slot in range(7):
            client.reset(slot, plan().episodes[0], 1)
        assert set(client.act({slot: Observation("Go.", 0, rgb=frame) for slot in range(7)})) == set(range(7))
        client.close()
    assert agent.batches == [4, 3]


def test_waiting_for_a_moment_ends() -> None:
    """In C, `SimpleQueue.get` waits for ever where its time is over between a first look and the wait."""
    server = AgentServer(RandomAgent(), ServeOptions("random", port=0))
    server._connections = {"one that asks", "one that does not"}
    server._thought_s = 1e-5  # a tenth of it is waited
    turn = _Turn({0: Observation("", 0)}, alone=False, answers=False)

    def ask() -> None:
        for _ in range(20_000):
            server._asked.put(turn)
            assert server._next_batch(lambda: None) == [turn]

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(30)
    assert not asking.is_alive(), "a batch waits for a client that does not ask"
