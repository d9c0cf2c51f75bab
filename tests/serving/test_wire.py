"""The protocol of served agents: what arrives, what is refused, and that the file works alone in an old Python."""

from __future__ import annotations

import ast
import io
import os
import random
import re
import socket
import subprocess
import sys
import time
import tokenize
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from agents.scripted import RandomAgent
from tests.fakes import PlaneEnv, make_set
from tests.served import connected, serving
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.errors import UsageError
from vlnbench.evaluation.answers.file import read_answers
from vlnbench.evaluation.evaluate import Execution, evaluate, make_plan
from vlnbench.evaluation.records import read_rows
from vlnbench.interfaces import Action, Answer, Conventions
from vlnbench.rollout.executor import Limits
from vlnbench.rollout.inline import Inline
from vlnbench.serving import wire

WIRE = Path(wire.__file__)


def send(address: str, *messages: bytes | str) -> list[Any]:
    """The answers to raw messages, until the server ends the connection."""
    with connect(address.replace("remote", "ws"), compression=None) as connection:
        replies = []
        try:
            for message in messages:
                connection.send(message)
                replies.append(msgpack.unpackb(connection.recv(timeout=10)))
        except WebSocketException:
            pass
        return replies


def hello(**changed: Any) -> bytes:
    return bytes(msgpack.packb({"type": "hello", "protocol": wire.PROTOCOL, "token": "", **changed}))


@given(
    st.dictionaries(
        st.text(max_size=5), st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
    ),
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from(["uint8", "float32"]),
)
@settings(max_examples=30, deadline=None)
def test_messages_arrive_as_they_were(value: Any, shape: list[int], dtype: str) -> None:
    array = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
    sent = msgpack.packb({"value": value, "array": array}, default=wire.encode)
    found = msgpack.unpackb(sent, object_hook=wire.decode)
    assert found["value"] == value
    assert found["array"].dtype == array.dtype
    assert found["array"].flags.writeable
    np.testing.assert_array_equal(found["array"], array)


@pytest.mark.parametrize("value", [np.zeros(3), np.array([None]), {1, 2}, object()])
def test_only_frames_and_plain_values_are_sent(value: object) -> None:
    with pytest.raises(TypeError, match="send text, numbers, and arrays of uint8 or float32"):
        msgpack.packb(value, default=wire.encode)


@pytest.mark.parametrize(
    "array",
    [
        {"dtype": "|O", "shape": [1], "data": b"12345678"},
        {"dtype": "|u1", "shape": [-1], "data": b"123"},
        {"dtype": "|u1", "shape": [2**62, 2**62], "data": b"123"},
        {"dtype": "<f4", "shape": [1], "data": b"123"},
        {"dtype": "|u1", "shape": [True], "data": b"1"},
        {"dtype": "|u1", "shape": [1.0], "data": b"1"},
    ],
)
def test_arrays_that_are_none_are_refused(array: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"array|buffer"):
        msgpack.unpackb(msgpack.packb(array), object_hook=wire.decode)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        "text",
        msgpack.packb(7),
        msgpack.packb({"type": "dance"}),
        msgpack.packb({"type": "act"}),
        msgpack.packb({"type": "act", "observations": []}),
        msgpack.packb({"type": "act", "observations": [{"slot": 3, "step": 0, "instruction": "Go."}]}),
        msgpack.packb({"type": "act", "observations": 5}),
        msgpack.packb({"type": "reset", "slot": [1], "episode": {}, "seed": 1}),
        msgpack.packb({"type": "reset", "slot": 0, "episode": {}, "seed": 1}),
        msgpack.packb({"type": "reset", "slot": 0, "episode": {"episode_id": "1", "instruction": "Go."}}),
        b"\x91" * 4000,
        b"\xdd\xff\xff\xff\xff",
    ],
)
def test_malformed_requests_end_their_connection_only(message: bytes | str) -> None:
    with serving(RandomAgent()) as address:
        welcome, refusal = send(address, hello(), message)
        assert welcome["name"] == "random"
        assert refusal["error"].startswith("request refused: ")
        assert send(address, message)[0]["error"].startswith("request refused: ")
        connected(address).close()


def test_noise_does_not_end_the_server() -> None:
    noise = random.Random(0)
    with serving(RandomAgent()) as address:
        for _ in range(20):
            replies = send(address, hello(), *(noise.randbytes(noise.randint(0, 40)) for _ in range(3)))
            assert replies[0]["name"] == "random"
            assert all("error" in reply for reply in replies[1:])


def test_wrong_tokens_and_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(RandomAgent(), token="sesame") as address:
        monkeypatch.setenv("VLNBENCH_TOKEN", "sesame")
        connected(address).close()
        for wrong in ("", "Sesame", "sésame"):
            monkeypatch.setenv("VLNBENCH_TOKEN", wrong)
            with pytest.raises(
                UsageError, match=r"the token is missing or wrong; set the same one .* VLNBENCH_TOKEN"
            ) as caught:
                connected(address)
            assert "sesame" not in str(caught.value)
        monkeypatch.setenv("VLNBENCH_TOKEN", "sesame")
        (refusal,) = send(address, hello(protocol=2, token="sesame"))
        assert refusal == {"error": "this end speaks version 1 of the protocol, the other 2", "usage": True}


@pytest.mark.parametrize("wrong", [b"\x81\xa1a" * 1_400_000, hello(more="x" * wire.HELLO_BYTES)])
def test_strangers_cannot_send_much(wrong: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither 4 MiB of nested maps nor a long text in a hello is unpacked; the connection ends."""
    unpacked: list[int] = []

    def unpackb(data: bytes, **options: Any) -> Any:
        unpacked.append(len(data))
        return msgpack.unpackb(data, **options)

    monkeypatch.setattr(wire, "msgpack", SimpleNamespace(unpackb=unpackb, packb=msgpack.packb))
    with serving(RandomAgent()) as address:
        with connect(address.replace("remote", "ws"), compression=None) as connection:
            connection.send(wrong)
            with pytest.raises(WebSocketException, match="1009"):
                connection.recv(timeout=10)
        assert unpacked == []
        connected(address).close()
        assert 0 < max(unpacked) < wire.HELLO_BYTES


@pytest.mark.parametrize(
    "held", [b"\x91" * 3000, b"\x81\xa1a" * 1300, b"\xdc\xff\xff" * 1300, b"\xdf\x7f\xff\xff\xff"]
)
def test_a_small_hello_cannot_ask_for_much_memory(held: bytes) -> None:
    """Deep nests, and headers of arrays and maps that promise much."""
    with serving(RandomAgent()) as address:
        tracemalloc.start()
        try:
            (refusal,) = send(address, held)
            assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
        finally:
            tracemalloc.stop()
    assert refusal["error"].startswith("request refused: ")


def test_large_messages_are_for_those_who_know_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    rgb = wire.encode(np.zeros((480, 640, 3), np.uint8))
    act = msgpack.packb(
        {"type": "act", "observations": [{"slot": 3, "step": 0, "instruction": "Go.", "rgb": rgb}]}
    )
    with serving(RandomAgent(), token="sesame") as address:
        _, refusal = send(address, hello(token="sesame"), act)
        assert refusal["error"] == "request refused: KeyError(3)"  # read, and no such episode
        assert [reply["error"] for reply in send(address, hello(token="Sesame"), act)] == [
            "the token is missing or wrong"
        ]


def test_strangers_have_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HELLO_S", 0.2)
    with (
        serving(RandomAgent()) as address,
        connect(address.replace("remote", "ws"), compression=None) as connection,
    ):
        assert "TimeoutError" in msgpack.unpackb(connection.recv(timeout=5))["error"]
        with pytest.raises(WebSocketException):
            connection.recv(timeout=5)


def test_connections_are_counted_from_their_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that never say a word are all that this server takes; a third is let in when one of them is gone."""
    monkeypatch.setattr(wire, "MAX_CONNECTIONS", 2)
    with serving(RandomAgent()) as address:
        place = ("127.0.0.1", int(address.rpartition(":")[2]))
        silent = [socket.create_connection(place) for _ in range(2)]
        for _ in range(3):
            with pytest.raises(UsageError, match="no agent is served there"):
                connected(address)
        silent.pop().close()
        deadline = time.monotonic() + 20
        while True:
            try:
                connected(address).close()
                break
            except UsageError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        silent.pop().close()


def test_the_token_of_a_user_is_made_once_and_for_this_machine(
    cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wire.token_for("10.0.0.7") == ""
    assert list(cache_home.iterdir()) == []
    first, path = wire.token_for("127.0.0.1"), cache_home / "vlnbench" / "token"
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert (path.read_text(), path.stat().st_mode & 0o777) == (first, 0o600)
    assert {wire.token_for(host) for host in ("127.0.0.1", "localhost", "::1")} == {first}
    path.write_text("")  # as one who made the file and has not yet written
    other = wire.token_for("localhost")
    assert other == path.read_text() != first
    with path.open("a") as file:
        file.write(first)  # another who found it empty as well
    assert wire.token_for("localhost") == other
    path.write_text("my own\n")
    assert wire.token_for("localhost") == "my own"
    monkeypatch.setenv("VLNBENCH_TOKEN", "sesame")
    assert {wire.token_for(host) for host in ("127.0.0.1", "10.0.0.7")} == {"sesame"}
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("VLNBENCH_TOKEN")
    monkeypatch.setenv("HOME", str(cache_home))
    wire.token_for("localhost")
    assert (cache_home / ".cache" / "vlnbench" / "token").exists()


def test_browsers_are_refused() -> None:
    with serving(RandomAgent()) as address, pytest.raises(WebSocketException, match="403"):
        connect(address.replace("remote", "ws"), origin="http://example.org").__enter__()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("remote://127.0.0.1", "expected remote://HOST:PORT"),
        ("remote://127.0.0.1:http", "expected remote://HOST:PORT"),
        ("remote://127.0.0.1:99999", "expected remote://HOST:PORT"),
        ("remote://:8900", "expected remote://HOST:PORT"),
        ("remote://127.0.0.1:8900/path", "expected remote://HOST:PORT"),
        ("remote", "expected remote://HOST:PORT"),
        ("remote://127.0.0.1:1", r"no agent is served there \(.*refused\); start one with `vlnbench serve`"),
        ("remote://no-such-host.invalid:80", "no agent is served there"),
    ],
)
def test_addresses_without_an_agent_are_user_mistakes(address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        connected(address)


def test_the_file_is_short_and_old_fashioned() -> None:
    source = WIRE.read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    imported = {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    imported |= {str(node.module).partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported - set(sys.stdlib_module_names) == {"msgpack", "numpy", "websockets"}
    layout = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    code = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in layout and not (token.type == tokenize.STRING and token.string.startswith('"""'))
    }
    assert len(code) <= 151


ELSEWHERE = """
import sys
import vlnbench_wire
import random


class Old:
    sensors = {"rgb", "depth"}
    identity = {"temperature": "0.5"}
    expects = {"turn_deg": 15.0}

    def __init__(self):
        self.running = {}

    def reset(self, slot, episode, seed):
        assert episode.instruction
        self.running[slot] = random.Random(seed)

    def act(self, observations):
        draw = ((0, 1, 2, 3), (0.02, 0.68, 0.15, 0.15))
        return {slot: self.running[slot].choices(*draw)[0] for slot in observations}

    def answered(self, slot):
        return [{"text": "\u2191 <b>", "actions": [1, 1], "prompt_tokens": 7}]


if sys.argv[1] == "serve":
    vlnbench_wire.serve(Old(), port=0, token="sesame")
else:
    import numpy

    agent = vlnbench_wire.Client("127.0.0.1", int(sys.argv[1]))
    assert agent.about["name"] == "random", agent.about
    actions = []
    agent.reset(5, {"episode_id": "7", "instruction": "Go."}, 1)
    for step in range(10):
        rgb = numpy.zeros((48, 64, 3), numpy.uint8)
        actions.append(agent.act({5: {"instruction": "Go.", "step": step, "rgb": rgb}})[5])
    agent.close()
    print(sys.version_info[:2], actions)
"""


def python_with(folder: Path) -> str:
    """The Python of the variable VLNBENCH_OLD_PYTHON, else this one; the folder gets the copied file."""
    (folder / "vlnbench_wire.py").write_text(WIRE.read_text())
    (folder / "elsewhere.py").write_text(ELSEWHERE)
    return os.environ.get("VLNBENCH_OLD_PYTHON", sys.executable)


def test_an_agent_elsewhere_needs_the_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [python_with(tmp_path), "elsewhere.py", "serve"]
    environment = {**os.environ, "PYTHONPATH": ""}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        monkeypatch.setenv("VLNBENCH_TOKEN", "sesame")
        agent = connected(address)
        assert (agent.stands_for.name, agent.sensors) == ("Old", {"rgb", "depth"})
        assert agent.expects == Conventions(turn_deg=15.0)
        planned = make_plan(get_benchmark("houses-r2r"), make_set("set", 4), "Old", count=None, seed=0, repeats=1)
        evaluate(
            planned, Inline(agent, PlaneEnv()), tmp_path / "remote", execution=Execution(Limits(answers=True))
        )
        said = next(iter(read_answers(tmp_path / "remote").values()))
        assert {each.answer for each in said} == {Answer("↑ <b>", (Action.MOVE_FORWARD,) * 2, prompt_tokens=7)}
        evaluate(planned, Inline(RandomAgent(), PlaneEnv()), tmp_path / "local")
        scores = [[row.scores for row in read_rows(tmp_path / place)] for place in ("remote", "local")]
        assert scores[0] == scores[1]
        monkeypatch.setenv("VLNBENCH_TOKEN", "")
        with pytest.raises(UsageError, match="the token is missing or wrong"):
            connected(address)
        agent.close()
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_an_environment_elsewhere_needs_the_file_only(tmp_path: Path) -> None:
    with serving(RandomAgent()) as address:
        command = [python_with(tmp_path), "elsewhere.py", address.rpartition(":")[2]]
        environment = {**os.environ, "PYTHONPATH": ""}
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    here = RandomAgent()
    here.reset(0, make_set("set", 1).episodes[0], 1)
    expected = [
        int(here._running[0]._random.choices(RandomAgent._ACTIONS, RandomAgent._WEIGHTS)[0]) for _ in range(10)
    ]  # type: ignore[attr-defined]
    assert str(expected) in result.stdout


@pytest.mark.parametrize(
    "message",
    [
        b"\xdd" + (2**20).to_bytes(4, "big") + b"\x80" * 2**20,
        b"\xdc" + (2**13).to_bytes(2, "big") + b"\x80" * 2**13,
        b"\xdc\x00\x40" + (b"\xdc" + (2**13).to_bytes(2, "big") + b"\x80" * 2**13) * 64,
        (b"\xdc\xff\xff") * 1000,
    ],
    ids=["long", "fits", "many", "deep"],
)
def test_what_a_message_may_take_is_bounded(message: bytes, request: pytest.FixtureRequest) -> None:
    tracemalloc.start()
    try:
        if request.node.callspec.id == "fits":
            assert wire.unpack(message) == [{}] * 2**13
        else:
            with pytest.raises(ValueError):  # noqa: PT011
                wire.unpack(message)
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()
