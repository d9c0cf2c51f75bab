"""Chat completions over HTTP, as OpenAI-compatible servers offer them. The standard library suffices."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from vlnbench.errors import UsageError
from vlnbench.rollout import said
from vlnbench.util.visible import one_line

KEY = "OPENAI_API_KEY"
"""Environment variable with the key, where a server wants one."""

_AGAIN = (408, 409, 429, 500, 502, 503, 504)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 60.0
_MAX_ANSWER = 8 * 2**20
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ApiError(Exception):
    """A request that failed, for the last time. status: of HTTP, if there was one."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer. text: empty where the model refused or said nothing; cut: it ended at its limit of tokens."""

    text: str
    cut: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:  # a key must not travel to another host
        return None


class Api:
    """One server. Raises UsageError for a URL that is none. Safe to use from many threads.

    retries: how often a request that fails is sent again; timeout_s: for one of them.
    """

    def __init__(self, base_url: str, retries: int, timeout_s: float) -> None:
        self.host = _checked_host(base_url)
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._retries, self._timeout_s = retries, timeout_s
        self._key = os.environ.get(KEY, "").strip()
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect(), _Limited()]
        if self.host in _LOOPBACK:
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def complete(self, body: dict[str, Any], deadline: float) -> Completion:
        """Send a request until it is answered. deadline: of `time.monotonic`.

        Raises ApiError, or UsageError where sending it again would not help anyone (key, model, URL).
        """
        wait = _FIRST_WAIT_S
        for attempt in range(self._retries + 1):
            try:
                return self._send(body, deadline)
            except _PassingError as error:
                pause = wait if error.wait_s is None else error.wait_s
                last = attempt == self._retries or time.monotonic() + pause >= deadline
                if last:
                    times = f" (sent {attempt + 1} times)" if attempt else ""
                    raise ApiError(f"{self._url}: {self._clean(str(error))}{times}", error.status) from None
            time.sleep(pause)
            wait *= 2
        raise AssertionError

    def _send(self, body: dict[str, Any], deadline: float) -> Completion:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        limit = max(0.001, min(self._timeout_s, deadline - time.monotonic()))
        with _Limit(limit) as over:
            request = _Request(self._url, json.dumps(body).encode(), headers)
            request.over = over
            try:
                with self._opener.open(request, timeout=limit) as response:
                    content = _read(response)
            except urllib.error.HTTPError as error:
                with error:
                    raise self._refusal(error) from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = getattr(error, "reason", error)
                raise _PassingError("timed out" if over.passed else f"{reason}" or type(reason).__name__) from None
        if over.passed:  # what has come by then looks whole
            raise _PassingError("timed out")
        return _completion(content.replace(self._key.encode(), b"***") if self._key else content)

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        try:
            told = _said(error.read(65536))
        except (OSError, http.client.HTTPException, ValueError):
            told = ""
        text = self._clean(f"HTTP {error.code} {error.reason}{': ' if told else ''}{told}")
        if error.code in _AGAIN:
            return _PassingError(text, _retry_after(error.headers.get("Retry-After")), error.code)
        if error.code in (401, 403):
            return UsageError(f"{self._url}: {text}; the key comes from the environment variable {KEY}")
        if error.code == 404 or 300 <= error.code < 400:
            return UsageError(f"{self._url}: {text}; check --base-url and --model")
        return ApiError(f"{self._url}: {text}", error.code)

    def _clean(self, text: str) -> str:
        """In one line, without the key, which some servers repeat."""
        return one_line(text.replace(self._key, "***") if self._key else text)


class _Limit:
    """Shuts the connection of a request when its time has passed: time-outs of sockets start anew with every byte.

    Use as a context manager.
    """

    def __init__(self, limit_s: float) -> None:
        self.passed = False
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(limit_s, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Limit:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def hold(self, connected: socket.socket) -> None:
        self._socket = connected

    def _end(self) -> None:
        self.passed = True
        with suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)


class _Request(urllib.request.Request):
    over: _Limit


class _Connection(http.client.HTTPConnection):
    over: _Limit

    def connect(self) -> None:
        super().connect()
        self.over.hold(self.sock)


class _Secure(http.client.HTTPSConnection):
    over: _Limit

    def connect(self) -> None:
        super().connect()
        self.over.hold(self.sock)


class _Limited(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections that the limit of their request holds."""

    def do_open(self, http_class: Any, req: Any, **more: Any) -> Any:
        kind = _Secure if issubclass(http_class, http.client.HTTPSConnection) else _Connection

        def held(*arguments: Any, **options: Any) -> Any:
            made = kind(*arguments, **options)
            made.over = req.over
            return made

        return super().do_open(held, req, **more)


class _PassingError(Exception):
    """A request that may work another time. wait_s: when, as the server said."""

    def __init__(self, text: str, wait_s: float | None = None, status: int | None = None) -> None:
        super().__init__(text)
        self.wait_s, self.status = wait_s, status


def _checked_host(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(f"--base-url {base_url!r}: expected a URL, e.g. http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError(f"--base-url: expected no user, password or query in it; a key goes into {KEY}")
    return str(parts.hostname)


def _read(response: Any) -> bytes:
    """The body."""
    content = bytearray()
    while part := response.read1(65536):
        content += part
        if len(content) > _MAX_ANSWER:
            raise _PassingError(f"an answer of more than {_MAX_ANSWER} bytes")
    return bytes(content)


def _completion(content: bytes) -> Completion:
    try:
        answer = json.loads(content)
        choice = answer["choices"][0]
        text = choice["message"].get("content") or ""
        usage = answer.get("usage") or {}
        names = ("prompt_tokens", "completion_tokens")
        tokens = [int(said.number(usage.get(name) or 0, f"usage.{name}")) for name in names]
        return Completion(_joined(text), choice.get("finish_reason") == "length", *tokens)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _PassingError(f"not a chat completion ({type(error).__name__}: {error})") from None


def _joined(content: Any) -> str:
    """The text of an answer, which some servers give in parts."""
    parts = content if isinstance(content, list) else [content]
    return "".join(str(part["text"]) if isinstance(part, dict) else str(part) for part in parts)


def _said(content: bytes) -> str:
    """What a server says of an error, in one of the usual forms."""
    text = content.decode(errors="replace")
    try:
        answer = json.loads(text)
        error = answer.get("error", answer.get("detail", answer.get("message", text)))
        return str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError, RecursionError):
        return text


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header: a number or a date."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(timezone.utc)).total_seconds()
        except Exception:  # headers of others: email.utils raises whatever comes
            return None
    return min(max(seconds, 0.0), _LONGEST_WAIT_S) if seconds == seconds else None
