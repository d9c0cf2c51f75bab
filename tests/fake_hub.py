"""A Hugging Face hub on this machine: repositories held in memory, the few addresses that its client asks for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants
import pytest

LARGE = (".safetensors", ".bin")
"""Files that the hub keeps apart and knows the SHA-256 of."""


@dataclass
class Repository:
    """Files by commit; names (branches, tags) of commits; whether its owners ask for consent first."""

    commits: dict[str, dict[str, bytes]]
    names: dict[str, str]
    gated: bool = False
    wrong_hash: bool = False

    def commit(self, revision: str) -> str | None:
        found = self.names.get(revision, revision)
        return found if found in self.commits else None


@dataclass
class FakeHub:
    """Repositories by ORG/NAME, and the paths of files that were downloaded."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    downloads: list[str] = field(default_factory=list)
    address: str = ""


class _Handler(BaseHTTPRequestHandler):
    """Answers for the hub that a subclass names."""

    hub: FakeHub

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._describe("/".join(parts[2:4]), "/".join(parts[5:]) or "main")
        else:
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), with_body)

    def _describe(self, name: str, revision: str) -> None:
        repository = self.hub.repositories.get(name)
        commit = repository.commit(revision) if repository else None
        if repository is None or commit is None:
            self._refuse(404, "RevisionNotFound" if repository else "RepoNotFound")
            return
        siblings = [
            {"rfilename": file, "size": len(content), "blobId": "0" * 40} | _lfs(repository, file, content)
            for file, content in repository.commits[commit].items()
        ]
        body = json.dumps({"id": name, "modelId": name, "sha": commit, "siblings": siblings}).encode()
        self._send(200, {"Content-Type": "application/json"}, body)

    def _file(self, name: str, revision: str, file: str, with_body: bool) -> None:
        repository = self.hub.repositories[name]
        if repository.gated:
            self._refuse(403, "GatedRepo")
            return
        commit = repository.commit(revision)
        assert commit is not None
        content = repository.commits[commit][file]
        digest = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": commit, "X-Linked-Size": str(len(content))}
        if with_body:
            self.hub.downloads.append(f"{name}/{file}")
        self._send(200, headers, content, with_body)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, {"X-Error-Code": code, "X-Error-Message": code}, b"{}")

    def _send(self, status: int, headers: dict[str, str], body: bytes, with_body: bool = True) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if with_body and self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serve_hub() -> Iterator[FakeHub]:
    """A hub that answers as long as the context lasts."""
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _lfs(repository: Repository, file: str, content: bytes) -> dict[str, object]:
    if not file.endswith(LARGE):
        return {}
    digest = "0" * 64 if repository.wrong_hash else hashlib.sha256(content).hexdigest()
    return {"lfs": {"sha256": digest, "size": len(content), "pointerSize": 130}}


def use(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hub's client ask this hub, and keep what it gets in `cache`."""
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)


def disconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without a network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
