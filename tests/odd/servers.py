"""Servers of agents that answer other than they should, by what they answer to which request."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgpack
from websockets.exceptions import WebSocketException
from websockets.sync.server import ServerConnection, serve

from agents.remote_options import RemoteOptions
from tests.fuzz.kinds.wire_messages import ABOUT, packed
from tests.odd.agents import ESCAPES
from tests.odd.trial import FINE, REFUSED, ROWS, Case

LONG = "ha " * 100_000
WAIT_S = 1.0

Talk = dict[str, Any]
"""What is answered to a request of a type: bytes or text as they are, a list of several, a function that does
something with the connection, anything else as a message. "raw": bytes on the socket in the place of all talk."""

HONEST: Talk = {
    "hello": {**ABOUT, "sensors": [], "expects": {}},
    "reset": {},
    "act": {"actions": [0], "reports": [{"answers": 2}]},
}


def about(**changes: Any) -> Talk:
    return {"hello": {**HONEST["hello"], **changes}}


def acts(**changes: Any) -> Talk:
    return {"act": {**HONEST["act"], **changes}}


def counts(report: Any) -> Talk:
    return acts(reports=[report])


def waits(connection: ServerConnection) -> None:
    time.sleep(3 * WAIT_S)


def ends(connection: ServerConnection) -> None:
    connection.close()


def cut(connection: ServerConnection) -> None:
    connection.socket.shutdown(socket.SHUT_RDWR)


def drips(connection: ServerConnection) -> None:
    """A message whose end does not come."""

    def parts() -> Iterator[bytes]:
        for _ in range(100):
            yield b"\x81"
            time.sleep(WAIT_S / 20)

    connection.send(parts())


def pings(connection: ServerConnection) -> None:
    for _ in range(200):
        connection.ping()
    connection.send(packed(HONEST["act"]))


NEST, PROMISE = b"\x91" * 4000, b"\xdd\xff\xff\xff\xff"
HELLO, RESET, ACT = ({name: None} for name in ("hello", "reset", "act"))
SAYS = "what it says of its agent"
ODD: dict[str, tuple[Case, Talk]] = {
    "honest": (Case(FINE), {}),
    # Who it says it is.
    "hello_ends": (Case(REFUSED, "no agent is served there"), {"hello": ends}),
    "hello_cut": (Case(REFUSED, "no agent is served there"), {"hello": cut}),
    "hello_waits": (Case(REFUSED, "no agent is served there (timed out"), {"hello": waits}),
    "hello_drips": (Case(REFUSED, "no agent is served there"), {"hello": drips}),
    "hello_text": (Case(REFUSED, "the answer is no map"), {"hello": "hello"}),
    "hello_empty": (Case(REFUSED, "no agent is served there"), {"hello": b""}),
    "hello_number": (Case(REFUSED, "the answer is no map"), {"hello": 7}),
    "hello_nest": (Case(REFUSED, "no agent is served there"), {"hello": NEST}),
    "hello_promise": (Case(REFUSED, "no agent is served there"), {"hello": PROMISE}),
    "hello_more": (Case(REFUSED, "no agent is served there"), {"hello": packed(ABOUT) + b"\x01"}),
    "hello_large": (Case(REFUSED, "no agent is served there"), about(description="a" * 2**21)),
    "hello_nothing": (Case(REFUSED, "field 'code': missing"), {"hello": {}}),
    "hello_error": (Case(REFUSED, "busy"), {"hello": {"error": "busy", "usage": True}}),
    "hello_error_escapes": (Case(REFUSED, "\\x1b[31mred"), {"hello": {"error": ESCAPES[:-1]}}),
    "hello_error_map": (Case(REFUSED, "{'a': 1}"), {"hello": {"error": {"a": 1}}}),
    "hello_error_long": (Case(REFUSED, "ha ha"), {"hello": {"error": LONG}}),
    "hello_token": (Case(REFUSED, "VLNBENCH_TOKEN"), {"hello": {"error": "the token is wrong"}}),
    "name_number": (Case(REFUSED, "field 'name'"), about(name=3)),
    "name_empty": (Case(REFUSED, "field 'name'"), about(name="")),
    "name_long": (Case(REFUSED, "field 'name'"), about(name="a" * 100_000)),
    "name_nul": (Case(REFUSED, "field 'name'"), about(name="a\0b")),
    "name_escapes": (Case(REFUSED, "no agent is served there"), about(name=ESCAPES)),
    "name_colored": (Case(REFUSED, "field 'name'"), about(name="\x1b[31mred\u202e")),
    "name_of_a_folder": (Case(FINE), about(name="../../etc/passwd")),
    "code_number": (Case(REFUSED, "field 'code'"), about(code=3)),
    "code_long": (Case(REFUSED, "field 'code'"), about(code=LONG)),
    "sensors_text": (Case(REFUSED, "field 'sensors'"), about(sensors="rgb")),
    "sensors_unknown": (Case(REFUSED, "unknown sensors"), about(sensors=["\x1b[31msonar"] * 1000)),
    "expects_list": (Case(REFUSED, "field 'expects'"), about(expects=[1])),
    "expects_text": (Case(REFUSED, "field 'expects'.width '640'"), about(expects={"width": "640"})),
    "expects_nan": (Case(REFUSED, "field 'expects'.hfov nan"), about(expects={"hfov": math.nan})),
    "expects_huge": (Case(REFUSED, "field 'expects'.width 1e+308"), about(expects={"width": 1e308})),
    "expects_unknown": (Case(REFUSED, "unknown sensors or conventions"), about(expects={LONG: 1})),
    "expects_another": (Case(REFUSED, "does not fit benchmark"), about(expects={"width": 1})),
    "identity_list": (Case(REFUSED, "field 'identity'"), about(identity=[1])),
    "identity_numbers": (Case(REFUSED, "no agent is served there"), about(identity={3: 1})),
    "identity_nested": (Case(REFUSED, "field 'identity': a"), about(identity={"a": {"b": 1}})),
    "identity_bytes": (Case(REFUSED, "field 'identity': a"), about(identity={"a": b"b"})),
    "identity_nan": (Case(REFUSED, "field 'identity': a nan"), about(identity={"a": math.nan})),
    "identity_large": (Case(REFUSED, "field 'identity': a"), about(identity={"a": 2**63})),
    "identity_many": (Case(REFUSED, "field 'identity'"), about(identity={str(i): i for i in range(9999)})),
    "identity_long": (Case(REFUSED, "field 'identity': a"), about(identity={"a": LONG})),
    "identity_long_name": (Case(REFUSED, "field 'identity' names"), about(identity={LONG: 1})),
    "identity_colored_name": (Case(REFUSED, "field 'identity' names"), about(identity={"\x1b[31m": 1})),
    "identity_colored": (Case(FINE), about(identity={"a": "\x1b[31mred\r\u202e"})),
    "place_nested": (Case(REFUSED, "field 'place': a"), about(place={"a": []})),
    "place_colored": (Case(FINE), about(place={"a": "\x1b[31mred\r" * 99})),
    "description_number": (Case(REFUSED, "field 'description'"), about(description=3)),
    "description_long": (Case(FINE), about(description="\x1b[31mred\n\r" * 9999)),
    "batch_none": (Case(REFUSED, "field 'max_batch'"), about(max_batch=0)),
    "batch_text": (Case(REFUSED, "field 'max_batch'"), about(max_batch="8")),
    "batch_large": (Case(REFUSED, "field 'max_batch'"), about(max_batch=2**63)),
    "bytes_few": (Case(REFUSED, "serve with a larger --max-message-mb"), about(max_bytes=1)),
    "speaks_http": (Case(REFUSED, "no agent is served there"), {"raw": b"HTTP/1.1 200 OK\r\n\r\n"}),
    "speaks_ssh": (Case(REFUSED, "no agent is served there"), {"raw": b"SSH-2.0-OpenSSH_9.6\r\n"}),
    "speaks_tls": (Case(REFUSED, "no agent is served there"), {"raw": b"\x16\x03\x01\x02\x00\x01\x00"}),
    "speaks_noise": (Case(REFUSED, "no agent is served there"), {"raw": b"\x1b[31m" * 50_000}),
    "sends_away": (
        Case(REFUSED, "no agent is served there"),
        {"raw": b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:1/\r\n\r\n"},
    ),
    "promises_another": (
        Case(REFUSED, "no agent is served there"),
        {"raw": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"},
    ),
    "says_nothing": (Case(REFUSED, "no agent is served there"), {"raw": b""}),
    # How an episode begins.
    "reset_number": (Case(ROWS, "cannot begin (the answer is no map"), {"reset": 7}),
    "reset_text": (Case(ROWS, "cannot begin (the answer is no map"), {"reset": ESCAPES[:9]}),
    "reset_frame": (Case(ROWS, "cannot begin"), {"reset": {"dtype": "|u1", "shape": [1], "data": b"1"}}),
    "reset_ends": (Case(ROWS, "cannot begin"), {"reset": ends}),
    "reset_cut": (Case(ROWS, "cannot begin"), {"reset": cut}),
    "reset_waits": (Case(ROWS, "cannot begin (timed out"), {"reset": waits}),
    "reset_nest": (Case(ROWS, "cannot begin"), {"reset": NEST}),
    "reset_error": (Case(ROWS, "RemoteError: no model"), {"reset": {"error": "no model"}}),
    "reset_error_colored": (Case(ROWS, "\\x1b[31mred"), {"reset": {"error": "\x1b[31mred\r" * 9999}}),
    "reset_usage": (Case(REFUSED, "no free slot"), {"reset": {"error": "no free slot", "usage": True}}),
    "reset_ended": (Case(ROWS, "the server has ended"), {"reset": {"error": "the server has ended", "ended": 1}}),
    "reset_more": (Case(FINE), {"reset": {"more": list(range(9999))}}),
    # What it does.
    "act_nothing": (Case(ROWS, "field 'actions': missing"), {"act": {}}),
    "act_none": (Case(ROWS, "field 'actions'"), acts(actions=None)),
    "act_text": (Case(ROWS, "field 'actions'"), acts(actions="1")),
    "act_nine": (Case(ROWS, "field 'actions'"), acts(actions=[9])),
    "act_true": (Case(ROWS, "field 'actions'"), acts(actions=[True])),
    "act_float": (Case(ROWS, "field 'actions'"), acts(actions=[1.0])),
    "act_two": (Case(ROWS, "field 'actions': expected 1 entries, found 2"), acts(actions=[1, 1])),
    "act_zero": (Case(ROWS, "field 'actions': expected 1 entries, found 0"), acts(actions=[])),
    "act_nested": (Case(ROWS, "field 'actions'"), acts(actions=[[1]])),
    "act_many": (Case(ROWS, "gave no answer"), acts(actions=[1] * 20_000)),
    "act_ends": (Case(ROWS, "gave no answer"), {"act": ends}),
    "act_cut": (Case(ROWS, "gave no answer"), {"act": cut}),
    "act_waits": (Case(ROWS, "gave no answer (timed out"), {"act": waits}),
    "act_drips": (Case(ROWS, "gave no answer"), {"act": drips}),
    "act_pings": (Case(FINE), {"act": pings}),
    "act_large": (Case(ROWS, "gave no answer"), acts(more="a" * 2**21)),
    "act_nest": (Case(ROWS, "gave no answer"), {"act": NEST}),
    "act_maps": (Case(ROWS, "gave no answer"), {"act": b"\xdd\x00\x0f\x00\x00" + b"\x80" * 0xF0000}),
    "act_more": (Case(ROWS, "gave no answer"), {"act": packed(HONEST["act"]) + b"\x01"}),
    "act_error": (Case(ROWS, "RemoteError: NaN"), {"act": {"error": "NaN"}}),
    "act_error_list": (Case(ROWS, "RemoteError: [1, 2]"), {"act": {"error": [1, 2]}}),
    "act_error_colored": (Case(ROWS, "RemoteError: \\x1b[31m"), {"act": {"error": "\x1b[31m\r" * 9999}}),
    "act_shared": (Case(ROWS, "in a batch with"), {"act": {"error": "NaN", "shared": True}}),
    "act_ended": (Case(ROWS, "the server has ended"), {"act": {"error": "the server has ended", "ended": True}}),
    "act_usage": (Case(REFUSED, "weights: missing"), {"act": {"error": "weights: missing", "usage": True}}),
    "act_twice": (Case(FINE), {"act": [packed(HONEST["act"])] * 2, "reset": {"actions": [0]}}),
    # What it counts.
    "reports_map": (Case(ROWS, "field 'reports'"), acts(reports={"a": 1})),
    "reports_two": (Case(ROWS, "field 'reports': expected 1 entries, found 2"), acts(reports=[{}, {}])),
    "report_number": (Case(ROWS, "field 'reports'"), counts(3)),
    "report_text": (Case(ROWS, "report: n 'x'"), counts({"n": "x"})),
    "report_nan": (Case(ROWS, "report: n nan"), counts({"n": math.nan})),
    "report_infinite": (Case(ROWS, "report: n -inf"), counts({"n": -math.inf})),
    "report_large": (Case(ROWS, "report: n -1e+308"), counts({"n": -1e308})),
    "report_whole": (Case(ROWS, "report: n 18446744073709551615"), counts({"n": 2**64 - 1})),
    "report_many": (Case(ROWS, "mapping of at most 100 names"), counts({str(i): i for i in range(10_000)})),
    "report_long_name": (Case(ROWS, "report names"), counts({LONG: 1})),
    "report_colored_name": (Case(ROWS, "report names '\\x1b[31m'"), counts({"\x1b[31m": 1})),
    "report_nested": (Case(ROWS, "report: n"), counts({"n": {"m": 1}})),
    "report_largest": (Case(FINE), counts({str(i): 1e15 for i in range(100)})),
}  # fmt: skip

ENDLESS = [name for name, (_, talk) in ODD.items() if {waits, drips} & {*filter(callable, talk.values())}]
ENDLESS += ["says_nothing"]


def options(name: str) -> RemoteOptions:
    """As for any server; less patient with those that have no end."""
    return RemoteOptions(remote_timeout=WAIT_S if name in ENDLESS else 15.0, reconnect=0.0)


@contextmanager
def served(talk: Talk) -> Iterator[str]:
    """Serve; yields the address."""
    if "raw" in talk:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            threading.Thread(target=_answer_raw, args=(listening, talk["raw"]), daemon=True).start()
            yield f"remote://127.0.0.1:{listening.getsockname()[1]}"
        return

    def answer(connection: ServerConnection) -> None:
        with suppress(WebSocketException, OSError):
            for data in connection:
                _send(connection, {**HONEST, **talk}[msgpack.unpackb(data)["type"]])

    with serve(answer, "127.0.0.1", 0, compression=None) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"remote://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()


def _send(connection: ServerConnection, reply: Any) -> None:
    if isinstance(reply, Callable):  # type: ignore[arg-type]
        reply(connection)
        return
    for each in reply if isinstance(reply, list) else [reply]:
        connection.send(each if isinstance(each, bytes | str) else packed(each))


def _answer_raw(listening: socket.socket, content: bytes) -> None:
    held = []
    with suppress(OSError):
        while True:
            connection, _ = listening.accept()
            held.append(connection)
            connection.recv(4096)
            connection.sendall(content)
            if content:
                held.pop().close()
