"""An empty token is none: with it, no server listens where others can reach it, and this machine takes its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.scripted import RandomAgent
from vlnbench.errors import UsageError
from vlnbench.serving import wire
from vlnbench.serving.options import LOOPBACK, ServeOptions
from vlnbench.serving.serve import AgentServer, run_serve

HOSTS = ["0.0.0.0", "", "::", "192.168.0.7"]


@pytest.fixture
def token_file(cache_home: Path) -> Path:
    path = cache_home / "vlnbench" / "token"
    path.parent.mkdir()
    path.touch(0o600)
    return path


@pytest.fixture
def no_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    def listen(*_: object) -> None:
        raise RuntimeError("a server without a token listens")

    monkeypatch.setattr(wire, "listen", listen)


@pytest.mark.usefixtures("no_listening")
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("token", [None, ""])
def test_an_empty_token_opens_no_host(monkeypatch: pytest.MonkeyPatch, host: str, token: str | None) -> None:
    if token is not None:
        monkeypatch.setenv("VLNBENCH_TOKEN", token)
    assert wire.token_for(host) == ""
    with pytest.raises(UsageError, match="others can reach it; set a token in the environment as VLNBENCH_TOKEN"):
        run_serve(ServeOptions("random", host=host))
    with pytest.raises(UsageError, match="others can reach it; give the server a token"):
        AgentServer(RandomAgent(), ServeOptions("random", host=host), "")
    for given in (None, ""):
        with pytest.raises(ValueError, match="others can reach this host: choose a token"):
            wire.serve(RandomAgent(), host, token=given)


@pytest.mark.parametrize("host", LOOPBACK)
def test_an_empty_token_is_not_set_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, token_file: Path, host: str
) -> None:
    monkeypatch.setenv("VLNBENCH_TOKEN", "")
    token = wire.token_for(host)
    assert len(token) == 64
    assert token_file.read_text() == token == wire.token_for(host)


@pytest.mark.parametrize("blank", ["", "\n", " " * 100])
def test_a_blank_file_holds_no_token(token_file: Path, blank: str) -> None:
    token_file.write_text(blank)
    token = wire.token_for("127.0.0.1")
    assert len(token) == 64
    assert token == wire.token_for("127.0.0.1")
    assert token_file.read_text() == blank + token


def test_two_that_found_a_file_empty_have_one_token(token_file: Path) -> None:
    token_file.write_text("a" * 64 + "b" * 64)
    assert wire.token_for("localhost") == "a" * 64
    token_file.write_text(" chosen\n")
    assert wire.token_for("localhost") == "chosen"
