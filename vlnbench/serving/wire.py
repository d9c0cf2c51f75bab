"""`remote://`, both ends, in one file to copy to an old environment: Python 3.8, numpy, msgpack and websockets 13.
An agent there:      serve(MyAgent())      and here   vlnbench eval --agent remote://127.0.0.1:8900
A simulator there:   vlnbench serve        and there  agent = Client("127.0.0.1", 8900)
    agent.reset(0, {"episode_id": "7", "instruction": "Go ..."}, seed=1)
    agent.act({0: {"instruction": "Go ...", "step": 0, "rgb": rgb}}) == {0: 1}
Actions: 0 stop, 1 forward, 2 left, 3 right, 4 up, 5 down. rgb: uint8 (height, width, 3); depth: float32, meters.
A request is a msgpack map in a binary frame, and so is its answer; {"error": ...} if it failed."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import os
import secrets
import socket
import struct
import sys
import threading
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
from websockets.exceptions import WebSocketException
from websockets.sync import client, server

PROTOCOL, PORT, MAX_BYTES, MAX_SLOTS = 1, 8900, 64 * 2**20, 64
HELLO_BYTES, HELLO_S, MAX_CONNECTIONS = 4096, 10, 128  # of strangers: bytes, seconds; of all: connections
MOST_VALUES, MOST_IN_ONE = 2**18, 2**14  # of a message; of one of its lists or maps
LOOPBACK = ("127.0.0.1", "localhost", "::1")
NOTHING = dict.fromkeys(("rgb", "depth", "pose", "oracle_action"))


class RemoteError(Exception):
    """The other end answered with an error: (what it says, the whole answer)."""


def encode(value: Any) -> dict[str, Any]:
    if isinstance(value, np.ndarray) and value.dtype in (np.uint8, np.float32):
        return {"dtype": value.dtype.str, "shape": value.shape, "data": value.tobytes()}
    raise TypeError(f"{type(value).__name__}: send text, numbers, and arrays of uint8 or float32")


def decode(value: dict[str, Any]) -> Any:
    if value.keys() != {"dtype", "shape", "data"}:
        return value
    shape = value["shape"] if isinstance(value["shape"], list) and isinstance(value["data"], bytes) else [-1]
    if str(value["dtype"]) not in ("|u1", "<f4") or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError("array of another type or shape")
    return np.frombuffer(value["data"], value["dtype"]).reshape(value["shape"]).copy()


def unpack(data: bytes) -> Any:
    """What a message says. An empty map is one byte of a message and 70 of memory, so that values are counted."""
    left = [MOST_VALUES]

    def counted(value: Any) -> Any:
        left[0] -= 1 + len(value)
        if left[0] < 0:
            raise ValueError(f"a message of more than {MOST_VALUES} values")
        return decode(value) if isinstance(value, dict) else value

    limits = {"max_array_len": MOST_IN_ONE, "max_map_len": MOST_IN_ONE}
    return msgpack.unpackb(data, object_hook=counted, list_hook=counted, **limits)


def token_for(host: str) -> str:
    """VLNBENCH_TOKEN; else, for hosts that are this machine, what a file of this user holds, made if absent.
    Raises OSError if there can be no such file or others can read it."""
    path = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "vlnbench", "token")
    if os.environ.get("VLNBENCH_TOKEN") or host not in LOOPBACK:
        return os.environ.get("VLNBENCH_TOKEN", "")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise PermissionError(0, "others can read the token in it; chmod 600 or remove it", path)
        file.write("" if file.read().strip() else secrets.token_hex(32))  # blanks are no token
        file.seek(0)  # two who find it empty both append, and both take what is first
        return file.read().strip()[:64]


class Client:
    """An agent that is served elsewhere. `about`: what it says of itself. timeout: seconds for one answer.
    token: as on the other end; None takes that of `token_for`."""

    def __init__(self, host: str, port: int = PORT, token: str | None = None, timeout: float = 120.0) -> None:
        token = token_for(host) if token is None else token
        raw, self.timeout = socket.create_connection((host, port), timeout), timeout
        raw.settimeout(None)
        # A send has no time limit in websockets: to a server that is stopped it would wait for ever.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(timeout) + 1, 0))
        self._socket = client.connect("ws://agent", sock=raw, compression=None, close_timeout=1).__enter__()
        self.about = self.ask(type="hello", protocol=PROTOCOL, token=token)

    def ask(self, **request: Any) -> dict[str, Any]:
        try:
            self._socket.send(msgpack.packb(request, default=encode))
            data = self._socket.recv(timeout=self.timeout)
            reply: Any = unpack(data) if isinstance(data, bytes) else None
            if not isinstance(reply, dict):
                raise ValueError("the answer is no map")
        except BaseException:
            self.close()  # or the next request would get the answer to this one
            raise
        if "error" in reply:
            raise RemoteError(str(reply["error"]), reply)
        return reply

    def reset(self, slot: int, episode: dict[str, Any], seed: int) -> None:
        self.ask(type="reset", slot=slot, episode=episode, seed=seed)

    def act(self, observations: dict[int, dict[str, Any]], **more: Any) -> dict[int, int]:
        entries = [{**observation, "slot": slot} for slot, observation in observations.items()]
        return dict(zip(observations, self.ask(type="act", observations=entries, **more)["actions"]))  # noqa: B905

    def close(self) -> None:
        self._socket.close()


def answer(connection: Any, about: Any, token: str, free: list[int], perform: Any) -> None:
    """Serve one connection until it ends. free: slots no one has; perform: answers requests with these slots."""
    mine: dict[int, int] = {}
    try:
        hello, error = msgpack.unpackb(connection.recv(timeout=HELLO_S), max_array_len=0, max_map_len=8), None
        if hello["protocol"] != PROTOCOL:
            error = f"this end speaks version {PROTOCOL} of the protocol, the other {hello['protocol']}"
        elif token and not hmac.compare_digest(str(hello["token"]).encode(), token.encode()):
            error = "the token is missing or wrong"
        else:  # the limit was that of `listen`; websockets 15 gave it another name
            connection.protocol.max_size = connection.protocol.max_message_size = about["max_bytes"]
        connection.send(msgpack.packb({"error": error, "usage": True} if error else about))
        for data in () if error else connection:
            request = unpack(data)
            for entry in request["observations"] if request["type"] == "act" else [request]:
                if request["type"] == "reset" and entry["slot"] not in mine:
                    if not free:
                        raise ValueError("no free slot: too many episodes at a time")
                    mine[entry["slot"]] = free.pop(0)
                entry["slot"] = mine[entry["slot"]]
            connection.send(msgpack.packb(perform(request)))
    except WebSocketException:
        pass  # the connection ended
    except Exception as problem:  # a request that is none, too many slots, no hello in time
        with suppress(WebSocketException):  # who sent it may be gone
            said = " ".join(repr(problem).split())[:200]
            connection.send(msgpack.packb({"error": f"request refused: {said}", "usage": True}))
    finally:
        free.extend(mine.values())


def listen(handler: Any, host: str, port: int) -> Any:
    """A running server whose `handler` gets at most MAX_CONNECTIONS at a time, to pass to `answer`."""
    running = server.serve(handler, host, port, compression=None, max_size=HELLO_BYTES, origins=[None])
    room, handle = threading.Semaphore(MAX_CONNECTIONS), running.handler

    def enter(connected: socket.socket, address: Any) -> None:
        admitted = room.acquire(blocking=False)
        if not admitted:
            connected.close()  # `handle` then returns at once
        handle(connected, address)  # raises nothing
        if admitted:
            room.release()

    running.handler = enter
    threading.Thread(target=running.serve_forever, daemon=True).start()
    return running


def serve(agent: Any, host: str = "127.0.0.1", port: int = PORT, token: str | None = None) -> None:
    """Serve an agent until Ctrl-C. It has `sensors` ("rgb", "depth"), perhaps dicts `identity` and `expects`,
    reset(slot, episode, seed) and act({slot: observation}) -> {slot: action}, perhaps answered(slot) -> [{"text":
    "what its model said"}]. token: as in `Client`; "": none."""
    token = token_for(host) if token is None else token
    if not token and host not in LOOPBACK:  # an error, as `python -O` leaves assertions out
        raise ValueError("others can reach this host: choose a token")
    lock = threading.Lock()

    def perform(request: dict[str, Any]) -> dict[str, Any]:
        with lock:
            try:
                if request["type"] == "reset":
                    agent.reset(request["slot"], SimpleNamespace(**request["episode"]), request["seed"])
                    return {}
                seen = {each["slot"]: SimpleNamespace(**{**NOTHING, **each}) for each in request["observations"]}
                actions = agent.act(seen)
                reply = {"actions": [int(actions[slot]) for slot in seen]}
                with suppress(Exception):  # what is only told decides on nothing
                    reply.update(answers=unpack(msgpack.packb([agent.answered(slot) for slot in seen])))
                return reply
            except Exception as error:
                return {"error": f"{type(error).__name__}: {error}"}

    code = hashlib.sha256(inspect.getsource(sys.modules[type(agent).__module__]).encode()).hexdigest()[:12]
    about: dict[str, Any] = {name: dict(getattr(agent, name, {})) for name in ("identity", "expects")}
    about.update(name=type(agent).__name__, code=code, sensors=sorted(agent.sensors), max_batch=MAX_SLOTS)
    about.update(max_bytes=MAX_BYTES, place={"python": sys.version.split()[0]})
    handler = partial(answer, about=about, token=token, free=list(range(MAX_SLOTS)), perform=perform)
    with listen(handler, host, port) as running:
        print(f"serving {about['name']} at remote://{host}:{running.socket.getsockname()[1]}", flush=True)
        threading.Event().wait()
