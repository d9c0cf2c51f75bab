"""A headless Chromium, driven by its own protocol, for tests of pages. Tests skip where there is none."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")


def find_browser() -> str | None:
    """`VLNBENCH_CHROMIUM`, or the first known name on the path."""
    named = [os.environ.get("VLNBENCH_CHROMIUM"), *map(shutil.which, NAMES)]
    return next((path for path in named if path), None)


class Tab:
    """One page of the browser."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setFocusEmulationEnabled", enabled=True)  # as if the window were the one in front

    def _call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(message["params"]["exceptionDetails"]))
        entry = message.get("params", {}).get("entry", {})
        if message.get("method") == "Log.entryAdded" and entry.get("level") == "error":
            self.problems.append(entry["text"])

    def open(self, address: str, width: int, dark: bool = False, height: int = 900) -> None:
        """Load a page in a window of this width (CSS pixels), and wait until it is there."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        self._call("Page.navigate", url=address)
        deadline = time.monotonic() + 60
        while self.run("document.readyState + ' ' + location.href.slice(0, 5)") in ("", "complete about"):
            assert time.monotonic() < deadline
        while self.run("document.readyState") != "complete":
            assert time.monotonic() < deadline

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        found = self._call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """A key of the keyboard, with its virtual key code."""
        for kind in ("rawKeyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path, whole: bool = True) -> None:
        """Write a PNG of the page."""
        found = self._call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser() -> Iterator[Tab]:
    """A tab of a browser that is started for it; skips the test where there is no browser."""
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium is at hand (apt install chromium, or set VLNBENCH_CHROMIUM)")
    connect = pytest.importorskip("websockets.sync.client").connect
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, *options, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = _port(Path(profile) / "DevToolsActivePort", process)
            with connect(_address(port), max_size=None) as socket:
                yield Tab(socket)
        finally:
            process.kill()
            process.wait()


def _port(path: Path, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + 60
    while not (path.is_file() and path.read_text().count("\n")):
        assert process.poll() is None, "the browser has ended"
        assert time.monotonic() < deadline, "the browser does not answer"
        time.sleep(0.05)
    return int(path.read_text().split("\n")[0])


def _address(port: int) -> str:
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
        return next(tab["webSocketDebuggerUrl"] for tab in json.load(answer) if tab["type"] == "page")
