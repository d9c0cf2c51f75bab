"""A server of chat completions that answers what it is told to."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any]
"""Status and body (JSON; text and bytes as they are); a dict under "headers" in an error's body are headers."""


def says(text: str | None, **choice: Any) -> Reply:
    message = {"role": "assistant", "content": text, **choice.pop("message", {})}
    usage = {"prompt_tokens": 100, "completion_tokens": 7}
    return 200, {"choices": [{"message": message, "finish_reason": "stop", **choice}], "usage": usage}


@dataclass
class Stub:
    """replies: what comes next, one per request; then `default`. requests: (headers, body) so far."""

    default: Callable[[dict[str, Any]], Reply] = lambda body: says("MOVE_FORWARD")
    replies: deque[Reply] = field(default_factory=deque)
    requests: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    delay_s: float = 0.0
    url: str = ""
    busy: int = 0
    most: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def texts(self) -> list[str]:
        """The text of the last message of each request."""
        contents = [body["messages"][-1]["content"] for _, body in self.requests]
        return [content if isinstance(content, str) else content[0]["text"] for content in contents]


@contextmanager
def stub() -> Iterator[Stub]:
    state = Stub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with state.lock:
                state.requests.append((dict(self.headers), body))
                status, answer = state.replies.popleft() if state.replies else state.default(body)
                state.busy += 1
                state.most = max(state.most, state.busy)
            time.sleep(state.delay_s)
            with state.lock:
                state.busy -= 1
            headers = answer.pop("headers", {}) if isinstance(answer, dict) else {}
            if not isinstance(answer, bytes):
                answer = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # the client has given up
                self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            pass  # a client that has given up

    with Server(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
