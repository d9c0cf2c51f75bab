"""Wire messages: what clients send a server, before and after they said who they are, and what servers answer."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import msgpack
import numpy as np
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from agents.remote import RemoteAgent, RemoteError
from agents.remote_options import RemoteOptions
from agents.scripted import RandomAgent
from tests.fakes import make_episode
from tests.fuzz.judge import Builder
from tests.fuzz.values import change, changed_bytes
from tests.served import serving
from vlnbench.errors import LostBatchError, RunError, UsageError
from vlnbench.interfaces import Observation
from vlnbench.serving import wire

NAME = "messages.jsonl"
"""First line: who is sent the others, "server" or "client". Then a message a line, [frame, content in
hexadecimal]; a frame is "binary", "text" or, in the place of all talk, "raw": bytes on the socket."""

TOKEN, SERVER, CLIENT = "sesame", "server", "client"
Message = tuple[str, bytes]
_WAIT_S = 5.0

FRAMES = {
    "rgb": wire.encode(np.zeros((4, 6, 3), np.uint8)),
    "depth": wire.encode(np.ones((4, 6), np.float32)),
}
EPISODE = {
    "episode_id": "7",
    "trajectory_id": "2",
    "scene_id": "a/a.glb",
    "start_position": [0.0, 0.0, 0.0],
    "start_rotation": [0.0, 0.0, 0.0, 1.0],
    "instruction": "Go.",
    "instruction_tokens": [5, 9],
    "language": "en",
    "goal_radius": 3.0,
    "instruction_id": "1",
}
SEEN = {"instruction": "Go.", "step": 0, "slot": 0, "pose": [[0.0] * 3, [0.0, 0.0, 0.0, 1.0]], "oracle_action": 1}
REQUESTS: tuple[dict[str, Any], ...] = (
    {"type": "hello", "protocol": wire.PROTOCOL, "token": TOKEN},
    {"type": "reset", "slot": 0, "episode": EPISODE, "seed": 1},
    {"type": "act", "observations": [{**SEEN, **FRAMES}], "alone": False},
)
ABOUT = {
    "name": "random",
    "code": "0123456789ab",
    "sensors": ["rgb", "depth"],
    "expects": {"width": 640, "turn_deg": 15.0, "hfov": None},
    "identity": {"temperature": 0.5, "greedy": True, "checkpoint": "a"},
    "description": "acts\nby chance",
    "max_batch": 8,
    "max_bytes": 2**26,
    "place": {"vlnbench": "1.0", "python": "3.11", "machine": "x86_64"},
}
REPLIES: tuple[dict[str, Any], ...] = (ABOUT, {}, {"actions": [1], "reports": [{"answers": 2, "seconds": 0.5}]})
ERRORS = (
    {"error": "no free slot", "usage": True},
    {"error": "the server has ended", "ended": True},
    {"error": "ArithmeticError: logits are NaN", "shared": True},
)
PROMISES = (
    b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01", b"\x91" * 4000, b"\x81\xa1a" * 1300, b"\xdc\xff\xff" * 1300, b"\xc1", b"",
)  # fmt: skip
"""Headers that promise much, nests, and what is no msgpack."""

RAW = (
    b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.0\r\nHost: a\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00" * 5000, b"A" * 100_000,
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"HTTP/1.1 429 Too Many Requests\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 300 + b"\r\n", b"",
)  # fmt: skip
"""Bytes of those who speak something else."""


def put(folder: Path, role: str, messages: list[Message]) -> None:
    lines = [json.dumps(role), *(json.dumps([frame, content.hex()]) for frame, content in messages)]
    (folder / NAME).write_text("\n".join(lines) + "\n")


def packed(value: Any) -> bytes:
    """A message, with numbers that msgpack has no room for cut to the largest, and broken text left broken."""
    return bytes(msgpack.packb(_storable(value), unicode_errors="surrogatepass"))


def _storable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_storable(key): _storable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(each) for each in value]
    return max(-(2**63), min(2**64 - 1, value)) if type(value) is int else value


def write(folder: Path, random: Random) -> None:
    role = random.choice((SERVER, CLIENT))
    if random.random() < 0.05:
        put(folder, role, [("raw", changed_bytes(random.choice(RAW), random))])
        return
    talk: list[Any] = json.loads(json.dumps(REQUESTS if role == SERVER else REPLIES, default=_as_list))
    at = random.randrange(len(talk))
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        if random.random() < 0.1:  # something of the talk is missing, comes twice or too early
            change(talk, random)
        elif isinstance(talk[at % len(talk)], dict | list) and talk[at % len(talk)]:
            change(talk[at % len(talk)], random)
        elif role == CLIENT:
            talk[at % len(talk)] = random.choice(ERRORS)
        talk = talk or [0]
    messages = [("binary", _packed_or_nest(each)) for each in talk]
    at %= len(messages)
    if random.random() < 0.15:
        messages[at] = ("binary", changed_bytes(messages[at][1], random))
    elif random.random() < 0.1:
        messages[at] = (random.choice(("binary", "text")), random.choice(PROMISES))
    elif random.random() < 0.05:
        messages[at] = ("text", b'{"type": "hello"}')
    put(folder, role, messages)


def _packed_or_nest(value: Any) -> bytes:
    """A changed message; what has become too deep for msgpack to write is written by hand."""
    try:
        return packed(_with_bytes(value))
    except (RecursionError, ValueError):
        return b"\x91" * 1000 + b"\x01"


_BYTES = "bytes in hexadecimal: "


def _as_list(value: bytes) -> str:
    return _BYTES + value.hex()


def _with_bytes(value: Any) -> Any:
    """A changed message, with its frames as bytes again where they are still text of bytes."""
    if isinstance(value, dict):
        return {key: _with_bytes(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_bytes(each) for each in value]
    if isinstance(value, str) and value.startswith(_BYTES):
        return bytes.fromhex(value.removeprefix(_BYTES))
    return value


def read(folder: Path) -> None:
    role, *lines = map(json.loads, (folder / NAME).read_text().splitlines())
    messages = [(frame, bytes.fromhex(content)) for frame, content in lines]
    with _nothing_logged(), patch.dict(os.environ, VLNBENCH_TOKEN=TOKEN):
        (_to_server if role == SERVER else _to_client)(messages)


def _to_server(messages: list[Message]) -> None:
    """Send a server messages, then see that it serves others as before. Raises UsageError if it refused one."""
    refused = ""
    with serving(RandomAgent(), token=TOKEN, max_slots=2, max_message_mb=1) as address:
        if messages and messages[0][0] == "raw":
            _send_raw(address, messages[0][1])
        else:
            refused = _send(address, messages)
        with closing(RemoteAgent(address, RemoteOptions(remote_timeout=_WAIT_S, reconnect=0.0))) as honest:
            _use(honest)
    if refused:
        raise UsageError(refused)


def _send(address: str, messages: list[Message]) -> str:
    """What the server says against messages; empty if nothing."""
    said = ""
    with suppress(WebSocketException), connect(address.replace("remote", "ws"), compression=None) as connection:
        for frame, content in messages:
            connection.send(content.decode("latin-1") if frame == "text" else content)
            reply = msgpack.unpackb(connection.recv(timeout=_WAIT_S))
            assert isinstance(reply, dict)
            said = reply.get("error", said)
    return str(said)


def _send_raw(address: str, content: bytes) -> None:
    with suppress(OSError), socket.create_connection(_place(address), timeout=_WAIT_S) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("remote://").rpartition(":")
    return host, int(port)


def _to_client(messages: list[Message]) -> None:
    """Have a client ask for something, and answer with messages. Raises UsageError if it does not take them."""
    with _answering(messages) as address:
        try:
            with closing(RemoteAgent(address, RemoteOptions(remote_timeout=_WAIT_S, reconnect=0.0))) as agent:
                _use(agent)
        except (RunError, LostBatchError, RemoteError) as error:  # what a run makes an error row of, or stops for
            raise UsageError(str(error)) from error


def _use(agent: RemoteAgent) -> None:
    agent.reset(0, make_episode(7), 1)
    (action,) = agent.act({0: Observation("Go.", 0)}).values()
    json.dumps([int(action), agent.report(0), dict(agent.identity), dict(agent.stands_for.place)], allow_nan=False)
    agent.description.encode()


@contextmanager
def _answering(messages: list[Message]) -> Iterator[str]:
    """Address at which every connection gets these messages, one for each request, and is closed."""
    if messages and messages[0][0] == "raw":
        with socket.create_server(("127.0.0.1", 0)) as listening:
            thread = threading.Thread(target=_answer_raw, args=(listening, messages[0][1]), daemon=True)
            thread.start()
            yield f"remote://127.0.0.1:{listening.getsockname()[1]}"
        return

    def answer(connection: ServerConnection) -> None:
        with suppress(WebSocketException, TimeoutError):
            for frame, content in messages:
                connection.recv(timeout=_WAIT_S)
                connection.send(content.decode("latin-1") if frame == "text" else content)

    with serve(answer, "127.0.0.1", 0, compression=None) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"remote://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()


def _answer_raw(listening: socket.socket, content: bytes) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.settimeout(_WAIT_S)
                connection.recv(4096)
                connection.sendall(content)


@contextmanager
def _nothing_logged() -> Iterator[None]:
    """Raise for what a thread of either end logs as an error or does not survive."""
    found: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    handler, usual = Keeps(logging.ERROR), threading.excepthook
    threading.excepthook = lambda failed: found.append(f"thread: {failed.exc_type.__name__}: {failed.exc_value}")
    logging.getLogger("websockets").addHandler(handler)
    try:
        yield
    finally:
        threading.excepthook = usual
        logging.getLogger("websockets").removeHandler(handler)
    if found:
        raise AssertionError("\n".join(found))


def _talk(role: str, at: int, **changed: Any) -> Builder:
    """The honest talk with fields of one of its messages changed."""

    def build(folder: Path) -> None:
        messages = [("binary", packed(each)) for each in (REQUESTS if role == SERVER else REPLIES)]
        messages[at] = ("binary", packed({**(REQUESTS if role == SERVER else REPLIES)[at], **changed}))
        put(folder, role, messages)

    return build


def _bytes(role: str, at: int, content: bytes, frame: str = "binary") -> Builder:
    """The honest talk with other bytes in the place of one of its messages."""

    def build(folder: Path) -> None:
        messages: list[Message] = [("binary", packed(e)) for e in (REQUESTS if role == SERVER else REPLIES)]
        messages[at] = (frame, content)
        put(folder, role, messages[:1] if frame == "raw" else messages)

    return build


corpus: Mapping[str, tuple[Builder, str]] = {
    "honest requests": (_talk(SERVER, 0), ""),
    "honest replies": (_talk(CLIENT, 0), ""),
    "a wrong token": (_talk(SERVER, 0, token="Sesame"), "the token is missing or wrong"),
    "a hello that is a number": (_bytes(SERVER, 0, packed(7)), "request refused: "),
    "a nest before the hello": (_bytes(SERVER, 0, b"\x91" * 4000), "request refused: "),
    "a frame of 2^62 numbers": (
        _talk(SERVER, 2, observations=[{**SEEN, "rgb": {"dtype": "|u1", "shape": [2**62], "data": b"1"}}]),
        "request refused: ",
    ),
    "a shape that is a number": (
        _talk(SERVER, 2, observations=[{**SEEN, "rgb": {"dtype": "|u1", "shape": 3, "data": b"123"}}]),
        "array of another type or shape",
    ),
    "a frame behind the end of a message": (
        _bytes(SERVER, 2, packed({**REQUESTS[2], "more": FRAMES["rgb"]}) + b"\x01"),
        "request refused: ExtraData(",
    ),
    "a long key": (_talk(SERVER, 2, observations=[{**SEEN, "slot": "x" * 100_000}]), "request refused: "),
    "another protocol at the server": (_bytes(SERVER, 0, b"GET / HTTP/1.1\r\n\r\n", "raw"), ""),
    "a greeting that is a number": (_bytes(CLIENT, 0, packed(7)), "the answer is no map"),
    "a greeting that is text": (_bytes(CLIENT, 0, b"hello", "text"), "the answer is no map"),
    "a greeting without a name": (_bytes(CLIENT, 0, packed({})), "field 'code': missing"),
    "sensors that are none": (_talk(CLIENT, 0, sensors=[["rgb"]]), "field 'sensors': expected a list of texts"),
    "an identity that is a list": (_talk(CLIENT, 0, identity=[1]), "field 'identity': expected an object"),
    "conventions of text": (_talk(CLIENT, 0, expects={"width": "640"}), "field 'expects'.width '640'"),
    "an error that is a map": (_talk(CLIENT, 0, error={"a": 1}), "{'a': 1}"),
    "an error of many lines": (_talk(CLIENT, 1, error="a\n" * 10_000, usage=True), "a a a a"),
    "a frame in the place of a map": (
        _bytes(CLIENT, 2, packed({"dtype": "|u1", "shape": [1], "data": b"1"})),
        "the answer is no map",
    ),
    "an action that is none": (_talk(CLIENT, 2, actions=[9]), "field 'actions': expected a list of actions"),
    "too many actions": (_talk(CLIENT, 2, actions=[1, 1]), "field 'actions': expected 1 entries, found 2"),
    "counts that are text": (
        _talk(CLIENT, 2, reports=[{"a": "b"}]),
        "the agent's report: a 'b': expected a finite number",
    ),
    "another protocol at the client": (_bytes(CLIENT, 0, b"SSH-2.0-OpenSSH_9.6\r\n", "raw"), "no agent is served"),
}
