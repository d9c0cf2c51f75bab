"""Answers of OpenAI-compatible servers that are not what they should be.

Each is given to the question before a run, and to all questions of one. What the model says badly is asked for
again and then a stop, which is no fault of the program: FINE.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from agents.openai.options import OpenAIOptions
from tests.agents.openai.stub import Reply, says, stub
from tests.odd.agents import ESCAPES
from tests.odd.trial import FINE, REFUSED, ROWS

KEY = "sk-secret"
LONG = "ha " * 100_000


Raw = Callable[[socket.socket], None]


def options(url: str, name: str) -> OpenAIOptions:
    """As for any model; less patient with those that have no end."""
    wait_s, retries = (1.0, 0) if name in ENDLESS else (15.0, 1)
    return OpenAIOptions(base_url=url, model="tiny", retries=retries, request_timeout=wait_s)


def chat(**changes: Any) -> Reply:
    return 200, {**says("STOP")[1], **changes}


def message(**changes: Any) -> Reply:
    return chat(choices=[{"message": {"role": "assistant", **changes}, "finish_reason": "stop"}])


def tokens(count: Any) -> Reply:
    return chat(usage={"prompt_tokens": count, "completion_tokens": 1})


def number(digits: str) -> Reply:
    """Tokens as they are written, which Python would not write."""
    return 200, json.dumps(tokens(12345)[1]).replace("12345", digits)


def fails(status: int, said: Any = "no", **headers: str) -> Reply:
    return status, {"error": {"message": said}, "headers": headers}


def sends(*parts: bytes, every_s: float = 0.0) -> Raw:
    """Bytes on the socket; with seconds between them, the last of them again and again."""

    def send(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
        while every_s:
            time.sleep(every_s)
            connection.sendall(parts[-1])

    return send


OK = b"HTTP/1.1 200 OK\r\n"
BODY = json.dumps(says("STOP")[1]).encode()

UNREAD = "not a chat completion"
TOKENS = "usage.prompt_tokens"

ODD: dict[str, tuple[str, str, Reply | Raw]] = {
    "honest": (FINE, "", says("STOP")),
    # What the model says.
    "content_null": (FINE, "", message(content=None)),
    "content_number": (FINE, "", message(content=3)),
    "content_parts": (FINE, "", message(content=[{"type": "text", "text": "STOP"}])),
    "content_images": (ROWS, UNREAD, message(content=[{"type": "image_url"}])),
    "content_object": (ROWS, UNREAD, message(content={"a": ESCAPES})),
    "content_long": (FINE, "", message(content=LONG)),
    "content_escapes": (FINE, "", message(content=ESCAPES)),
    "content_key": (FINE, "", message(content=f"STOP {KEY}")),
    "content_nest": (FINE, "", message(content="{" * 100_000)),
    "content_numbers": (FINE, "", message(content='{"actions": [1, 2]}')),
    "content_list": (FINE, "", message(content='{"actions": ["STOP"], "actions": 3}')),
    "refusal": (FINE, "", message(content=None, refusal=ESCAPES)),
    "tool_calls": (FINE, "", message(content=None, tool_calls=[{"function": {"name": "stop"}}])),
    "finish_reason_list": (FINE, "", chat(choices=[{"message": {"content": "STOP"}, "finish_reason": [1]}])),
    # What holds it.
    "choices_missing": (ROWS, UNREAD, (200, {})),
    "choices_null": (ROWS, UNREAD, chat(choices=None)),
    "choices_none": (ROWS, UNREAD, chat(choices=[])),
    "choices_object": (ROWS, UNREAD, chat(choices={})),
    "choices_text": (ROWS, UNREAD, chat(choices="STOP")),
    "choice_null": (ROWS, UNREAD, chat(choices=[None])),
    "message_null": (ROWS, UNREAD, chat(choices=[{"message": None}])),
    "message_text": (ROWS, UNREAD, chat(choices=[{"message": "STOP"}])),
    "top_list": (ROWS, UNREAD, (200, [1])),
    "top_null": (ROWS, UNREAD, (200, None)),
    "error_within": (ROWS, UNREAD, (200, {"error": KEY})),
    "empty": (ROWS, UNREAD, (200, "")),
    "html": (ROWS, UNREAD, (200, f"<html>{ESCAPES[:-1]}{LONG}</html>")),
    "noise": (ROWS, UNREAD, (200, b"\xff\xfe\x00\x80")),
    "utf_16": (FINE, "", (200, BODY.decode().encode("utf-16"))),
    "nest": (ROWS, UNREAD, (200, "[" * 100_000)),
    "too_large": (ROWS, "an answer of more than", (200, b" " * 2**23 + BODY)),
    # What it counts.
    "usage_null": (FINE, "", chat(usage=None)),
    "usage_list": (ROWS, UNREAD, chat(usage=[1])),
    "usage_text": (ROWS, UNREAD, chat(usage=KEY)),
    "tokens_null": (FINE, "", tokens(None)),
    "tokens_text": (ROWS, TOKENS, tokens("12")),
    "tokens_key": (ROWS, TOKENS, tokens(KEY)),
    "tokens_escapes": (ROWS, TOKENS, tokens(ESCAPES)),
    "tokens_list": (ROWS, TOKENS, tokens([KEY])),
    "tokens_infinite": (ROWS, TOKENS, number("1e999")),
    "tokens_nan": (ROWS, TOKENS, number("NaN")),
    "tokens_large": (ROWS, TOKENS, number("1e308")),
    "tokens_whole": (ROWS, TOKENS, number("9" * 400)),
    "tokens_huge": (ROWS, UNREAD, number("9" * 5000)),
    "tokens_half": (FINE, "", number("0.5")),
    # How it fails.
    "status_204": (ROWS, UNREAD, (204, "")),
    "status_400": (ROWS, "HTTP 400", fails(400, LONG)),
    "status_413": (ROWS, "HTTP 413", fails(413, ESCAPES)),
    "status_418": (ROWS, "HTTP 418", fails(418, KEY)),
    "status_429_nan": (ROWS, "HTTP 429", fails(429, **{"Retry-After": "nan"})),
    "status_429_less": (ROWS, "HTTP 429", fails(429, **{"Retry-After": "-1e999"})),
    "status_429_word": (ROWS, "HTTP 429", fails(429, **{"Retry-After": "soon"})),
    "status_429_never": (ROWS, "HTTP 429", fails(429, **{"Retry-After": "Fri, 31 Dec 99999 99:99:99 +99999999"})),
    "status_500_list": (ROWS, "HTTP 500", (500, ["no", {"a": KEY}])),
    "status_500_noise": (ROWS, "HTTP 500", (500, b"\x1b[31m\xff\x00" * 999)),
    "status_500_nest": (ROWS, "HTTP 500", (500, "[" * 100_000)),
    "status_401": (REFUSED, "OPENAI_API_KEY", fails(401, f"bad key {KEY}\x1b[31m")),
    "status_404": (REFUSED, "check --base-url and --model", fails(404, LONG)),
    "status_302": (REFUSED, "check --base-url", fails(302, Location="http://127.0.0.1:1/")),
    # What is no answer.
    "ends": (ROWS, "/v1/chat/completions: ", sends(b"")),
    "ssh": (ROWS, "SSH-2.0", sends(b"SSH-2.0-OpenSSH_9.6\r\n")),
    "colored_line": (ROWS, "/v1/chat/completions: ", sends(b"\x1b[31mred\x07\r\n")),
    "colored_reason": (ROWS, "HTTP 418", sends(b"HTTP/1.1 418 \x1b[31mred\r\n\r\n")),
    "cut": (ROWS, "/v1/chat/completions: ", sends(OK + b"Content-Length: 999\r\n\r\n" + BODY[:9])),
    "chunks_of_noise": (ROWS, "/v1/chat/completions: ", sends(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}")),
    "length_of_noise": (FINE, "", sends(OK + b"Content-Length: \x1b[31m\r\n\r\n" + BODY)),
    "packed": (ROWS, UNREAD, sends(OK + b"Content-Encoding: gzip\r\n\r\n\x1f\x8b\x08\x00")),
    "many_headers": (ROWS, "/v1/chat/completions: ", sends(OK + b"A: b\r\n" * 999 + b"\r\n")),
    "long_header": (ROWS, "/v1/chat/completions: ", sends(OK + b"A: " + b"b" * 99_999 + b"\r\n\r\n")),
    "silent": (ROWS, "timed out", sends(b"", every_s=9.0)),
    "header_drips": (ROWS, "timed out", sends(OK + b"A: ", b"b", every_s=0.05)),
    "body_drips": (ROWS, "timed out", sends(OK + b"\r\n", b" ", every_s=0.05)),
    "chunk_drips": (ROWS, "timed out", sends(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0", every_s=0.05)),
    "goes_on": (ROWS, "timed out", sends(b"HTTP/1.1 100 Continue\r\n\r\n", every_s=0.05)),
}

ENDLESS = [name for name, (_, says, _) in ODD.items() if says == "timed out"]


@contextmanager
def served(reply: Reply | Raw, honest: int) -> Iterator[str]:
    """Serve, with so many honest answers first; yields the base URL."""
    if callable(reply):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            threading.Thread(target=_answer, args=(listening, reply, honest), daemon=True).start()
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        return
    with stub() as server:
        server.replies.extend([says("TURN_LEFT")] * honest)
        status, body = reply
        server.default = lambda asked: (status, dict(body) if isinstance(body, dict) else body)
        yield server.url


def _answer(listening: socket.socket, raw: Raw, honest: int) -> None:
    turns = sends(OK + b"\r\n" + json.dumps(says("TURN_LEFT")[1]).encode())
    with suppress(OSError):
        for count in range(10**6):
            connection, _ = listening.accept()
            job = (connection, turns if count < honest else raw)
            threading.Thread(target=_send, args=job, daemon=True).start()


def _send(connection: socket.socket, raw: Raw) -> None:
    with suppress(OSError), connection:
        connection.recv(2**20)
        raw(connection)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(2**20):  # closed with a part of the question unread, it would take the answer back
            pass
