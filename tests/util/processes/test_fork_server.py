from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import pytest

from vlnbench.errors import UsageError
from vlnbench.util.processes.child import Child, Line, live_and_die_with_parent
from vlnbench.util.processes.fork_server import ForkServer, can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="needs forks and pidfd_open")

HERE = __name__
PREPARED: list[str] = []


def prepare(text: str) -> None:
    if text == "broken":
        raise UsageError("cannot be prepared")
    if text == "threads":
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    PREPARED.append(text)


def main(descriptor: int, memory: int, word: str) -> None:
    live_and_die_with_parent()
    line = Line(descriptor)
    os.write(memory, word.encode())
    line.send((PREPARED, os.getppid()))
    order = line.receive()
    if order == "fail":
        raise RuntimeError("as ordered")
    sys.exit(order)


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    made = ForkServer("test", f"{HERE}:prepare", "once", {}, 60.0)
    yield made
    made.close()


def child(fork_server: ForkServer | None, memory: int, word: str = "written") -> Child:
    return Child("test", HERE, (word,), [memory], fork_server=fork_server)


def test_forked_processes_have_what_was_prepared_their_files_and_an_end(fork_server: ForkServer) -> None:
    with tempfile.TemporaryFile() as memory:
        children = [child(fork_server, memory.fileno()) for _ in range(2)]
        answers = [each.receive() for each in children]
        assert [prepared for prepared, _ in answers] == [["once"], ["once"]]
        assert len({parent for _, parent in answers}) == 1
        assert answers[0][1] != os.getpid()
        assert os.pread(memory.fileno(), 100, 0) == b"written" * 2
        assert children[0].alive
        children[0].send(7)
        children[1].send("fail")
        with pytest.raises(EOFError):
            children[0].receive()
        assert children[0].exit_code() == 7
        assert not children[0].alive
        with pytest.raises(EOFError):
            children[1].receive()
        assert "exit code 1" in children[1].cause_of_death()
        assert "RuntimeError: as ordered" in children[1].cause_of_death()
        for each in children:
            each.close()


def test_a_forked_process_can_be_killed(fork_server: ForkServer) -> None:
    with tempfile.TemporaryFile() as memory:
        one = child(fork_server, memory.fileno())
        one.receive()
        one._process.send_signal(signal.SIGKILL)
        assert one.exit_code() == -signal.SIGKILL
        one.close()


def test_forked_processes_end_with_the_fork_server(fork_server: ForkServer) -> None:
    with tempfile.TemporaryFile() as memory:
        one = child(fork_server, memory.fileno())
        one.receive()
        fork_server.close()
        with pytest.raises(EOFError):
            one.receive()
        assert one.exit_code() == -signal.SIGKILL
        one.close()


@pytest.mark.parametrize("how", ["threads", "closed"])
def test_without_a_fork_server_that_can_fork_it_is_a_new_interpreter(how: str) -> None:
    made = ForkServer("test", f"{HERE}:prepare", how, {}, 60.0)
    if how == "closed":
        made.close()
    with tempfile.TemporaryFile() as memory:
        one = child(made, memory.fileno())
        assert one.receive() == ([], os.getpid())
        one.close()
    made.close()


def test_what_cannot_be_prepared_is_left_to_the_forked_process() -> None:
    made = ForkServer("test", f"{HERE}:prepare", "broken", {}, 60.0)
    with tempfile.TemporaryFile() as memory:
        one = child(made, memory.fileno())
        assert one.receive()[0] == []
        one.close()
    made.close()


def test_a_fork_server_that_is_stopped_is_done_without(
    fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vlnbench.util.processes.child.STOPPED_S", 1.0)
    with tempfile.TemporaryFile() as memory:
        before = child(fork_server, memory.fileno())
        before.receive()
        fork_server._process._process.send_signal(signal.SIGSTOP)
        after = child(fork_server, memory.fileno())  # a new interpreter
        assert after.receive()[1] == os.getpid()
        assert "does not answer" in capsys.readouterr().err
        before.send(7)
        with pytest.raises(EOFError):
            before.receive()
        assert before.exit_code() == -signal.SIGKILL  # nobody tells the real one any more
        for each in (before, after):
            each.close()


def test_the_end_of_a_fork_is_not_waited_for_where_its_server_is_stopped(
    fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vlnbench.util.processes.child.STOPPED_S", 1.0)
    with tempfile.TemporaryFile() as memory:
        one = child(fork_server, memory.fileno())
        one.receive()
        fork_server._process._process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        one.close()
        assert time.monotonic() - began < 30
