"""The page of a view, live: served on this machine only, and made anew as runs go on."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from vlnbench.errors import UsageError
from vlnbench.views.find import Found, find
from vlnbench.views.page import payload, render
from vlnbench.views.runs import NamedRun, report_of

HOST = "127.0.0.1"

POLICY = "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'"
OF_REPORTS = f"sandbox allow-scripts; {POLICY}; connect-src 'none'"
"""A report may be somebody else's: its script may not ask this server for anything."""


class Live:
    """The newest data of a view. Read again when a file of it has changed, or a folder has come."""

    def __init__(self, paths: Sequence[Path], data_root: Path) -> None:
        self._paths, self._data_root = paths, data_root
        self._lock = threading.Lock()
        self._stamp: Any = None
        self._data: dict[str, Any] = {}
        self.shown: list[NamedRun] = []

    def data(self) -> dict[str, Any]:
        """The data of the page, with a `stamp` that changes when they do. Raises UsageError as `find`."""
        with self._lock:
            found: Found = find(self._paths)
            stamp = found.stamp()
            if stamp != self._stamp:
                data, self.shown = payload(found, None, self._data_root, None)
                named = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
                self._stamp, self._data = stamp, {**data, "stamp": named}
            return self._data


class Handler(BaseHTTPRequestHandler):
    """Answers GET of the page, of its data, and of the reports of its runs; no other file.

    All lie below the token, which other users of this machine do not know.
    """

    live: Live
    token: str
    server_version = "vlnbench"
    sys_version = ""

    def do_GET(self) -> None:
        """Whoever asks under another name than this machine's own is another site's script in a browser."""
        assert isinstance(self.server, ThreadingHTTPServer)
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self._send(403, "text/plain", b"this server answers to 127.0.0.1 and localhost only\n")
            return
        begin, slash, path = self.path[1:].partition("/")
        if not slash or not hmac.compare_digest(begin.encode(), self.token.encode()):
            self._send(403, "text/plain", b"open the address that vlnbench view has printed, with its token\n")
            return
        try:
            self._answer(urlsplit(f"/{path}"))
        except UsageError as error:
            self._send(500, "text/plain", f"{error}\n".encode(errors="replace"))

    def _answer(self, address: SplitResult) -> None:
        if address.path == "/":
            self._send(200, "text/html", render(self.live.data(), live=True).encode(errors="replace"))
        elif address.path == "/data.json":
            data = self.live.data()
            if parse_qs(address.query).get("stamp") == [data["stamp"]]:
                self._send(204, "application/json", b"")
            else:
                self._send(200, "application/json", json.dumps(data, allow_nan=False).encode())
        elif (report := self._report(address.path)) is not None:
            self._send(200, "text/html", report, OF_REPORTS)
        else:
            self._send(404, "text/plain", b"not here\n")

    def _report(self, path: str) -> bytes | None:
        """A report's content; no link is followed, which may lead to any file."""
        number = path.removeprefix("/report/")
        if number == path or not number.isdecimal() or len(number) > 4 or int(number) >= len(self.live.shown):
            return None
        report = report_of(self.live.shown[int(number)].run.folder)
        return None if report is None or report.is_symlink() else report.read_bytes()

    def _send(self, status: int, kind: str, content: bytes, policy: str = POLICY) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", policy)
        self.send_header("Referrer-Policy", "no-referrer")
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is for the address."""


def make_server(paths: Sequence[Path], data_root: Path, port: int) -> tuple[ThreadingHTTPServer, str]:
    """A server of the live page, ready for `serve_forever`, and the page's address with a new token.

    port: 0 takes a free one. Raises UsageError.
    """
    live, token = Live(paths, data_root), secrets.token_urlsafe(16)
    live.data()
    handler = type("LiveHandler", (Handler,), {"live": live, "token": token})
    try:
        server = ThreadingHTTPServer((HOST, port), handler)
        return server, f"http://{HOST}:{server.server_port}/{token}/"
    except (OSError, OverflowError) as error:
        raise UsageError(f"--port {port}: cannot be used ({error}); choose another") from error
