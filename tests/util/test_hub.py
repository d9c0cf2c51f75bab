"""hf:ORG/NAME@REVISION against a hub on this machine, through the hub's own client."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_hub import FakeHub, Repository, disconnect, serve_hub, use
from vlnbench.errors import UsageError
from vlnbench.util.hub import _list, fetch, is_hub, spoken

OLD, NEW = "a" * 40, "b" * 40
FILES = {"config.json": b'{"model_type": "x"}', "tokenizer.json": b"{}", "model.safetensors": b"weights"}
BESIDE = {"README.md": b"text", "modeling.py": b"raise SystemExit", "training_args.bin": b"pickle"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serve_hub() as served:
        use(served, tmp_path / "cache", monkeypatch)
        served.repositories["org/model"] = Repository(
            {OLD: FILES | {"config.json": b"{}"}, NEW: FILES | BESIDE}, {"main": NEW, "v1": OLD}
        )
        yield served


def test_only_what_is_read_is_downloaded_and_only_once(hub: FakeHub) -> None:
    found = fetch("hf:org/model")
    assert found.name == f"hf:org/model@{NEW}"
    assert sorted(path.name for path in found.folder.iterdir()) == sorted(FILES)
    assert (found.folder / "model.safetensors").read_bytes() == b"weights"
    assert spoken(found.folder) == found.name
    assert sorted(hub.downloads) == sorted(f"org/model/{name}" for name in FILES)
    assert fetch("hf:org/model") == found
    assert len(hub.downloads) == len(FILES)


def test_a_revision_is_a_commit_a_tag_or_a_branch(hub: FakeHub) -> None:
    assert fetch("hf:org/model@v1").name == fetch(f"hf:org/model@{OLD}").name == f"hf:org/model@{OLD}"
    assert fetch("hf:org/model@main").name == f"hf:org/model@{NEW}"


def test_what_a_checkpoint_is_takes_no_weights(hub: FakeHub) -> None:
    found = fetch("hf:org/model", weights=False)
    assert "org/model/model.safetensors" not in hub.downloads
    assert fetch("hf:org/model").folder == found.folder
    assert "org/model/model.safetensors" in hub.downloads


def test_without_a_network_the_cache_is_taken(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    there = fetch("hf:org/model")
    disconnect(monkeypatch)
    assert fetch("hf:org/model") == there
    assert fetch(f"hf:org/model@{NEW}") == there
    with pytest.raises(
        UsageError, match=r"the hub does not answer .* has no copy; run `hf download org/other"
    ) as told:
        fetch("hf:org/other")
    assert "\n" not in str(told.value)


def test_pickles_are_taken_only_where_they_are_trusted(hub: FakeHub) -> None:
    pickled = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    hub.repositories["org/old"] = Repository({OLD: pickled}, {"main": OLD})
    with pytest.raises(UsageError, match=r"weights are pickles \(pytorch_model.bin\).* --trust-pickle"):
        fetch("hf:org/old")
    assert not hub.downloads
    folder = fetch("hf:org/old", trust_pickle=True).folder
    assert (folder / "pytorch_model.bin").read_bytes() == b"pickle"
    assert not (fetch("hf:org/model", trust_pickle=True).folder / "training_args.bin").exists()


def test_a_hash_that_differs_is_named(hub: FakeHub) -> None:
    hub.repositories["org/model"].wrong_hash = True
    with pytest.raises(UsageError, match=r"model.safetensors: is not what the hub says .* delete it"):
        fetch("hf:org/model")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:model", r"expected hf:ORG/NAME or hf:ORG/NAME@REVISION"),
        ("hf:org/../model", r"expected hf:ORG/NAME"),
        ("hf:org/model@", r"expected hf:ORG/NAME"),
        ("hf:org/nothing", r"no such repository, or a private one"),
        ("hf:org/model@v9", r"has no revision 'v9'"),
        ("hf:org/closed", r"owners ask for consent; give it at https://huggingface.co/org/closed"),
        ("hf:org/empty", r"holds no weights; expected \*.safetensors"),
        ("hf:org/text", r"holds no config.json"),
    ],
)
def test_what_cannot_be_had_is_one_line(hub: FakeHub, name: str, message: str) -> None:
    hub.repositories["org/closed"] = Repository({OLD: FILES}, {"main": OLD}, gated=True)
    hub.repositories["org/empty"] = Repository({OLD: {"config.json": b"{}"}}, {"main": OLD})
    hub.repositories["org/text"] = Repository({OLD: {"model.safetensors": b"x"}}, {"main": OLD})
    with pytest.raises(UsageError, match=message) as told:
        fetch(name)
    assert "\n" not in str(told.value)


def test_names_of_the_hub(tmp_path: Path) -> None:
    assert is_hub("hf:org/model")
    assert not is_hub("org/model")
    assert spoken(tmp_path) == str(tmp_path)


@pytest.mark.filterwarnings("ignore:flock not supported")  # newer clients say so
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_cache_whose_files_cannot_be_locked(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The hub's client does without locks where they are unknown, and fails where there is no lock manager."""

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    if number == errno.ENOSYS:
        assert fetch("hf:org/model").name == f"hf:org/model@{NEW}"
        return
    with pytest.raises(UsageError, match=r"cannot be downloaded \(.*No locks available\); set HF_HOME to another"):
        fetch("hf:org/model")


def test_a_model_in_parts_is_fetched_with_its_folders(hub: FakeHub) -> None:
    """As NaVILA's; folders of a repository with weights of its own are left alone."""
    part = {"config.json": b"{}", "model.safetensors": b"part"}
    files = {f"{folder}/{name}": content for folder in ("llm", "tower") for name, content in part.items()}
    more = {"config.json": b"{}", "docs/page.txt": b"text", "llm/optimizer.pt": b"states"}
    hub.repositories["org/parts"] = Repository({OLD: files | more}, {"main": OLD})
    assert not (fetch("hf:org/parts", weights=False).folder / "llm" / "model.safetensors").exists()
    folder = fetch("hf:org/parts").folder
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert found == sorted([*files, "config.json"])
    hub.repositories["org/parts"].commits[OLD] = files
    with pytest.raises(
        UsageError, match=r"holds no config.json; one is in llm: run `hf download org/parts --incl"
    ):
        fetch("hf:org/parts")
    hub.repositories["org/parts"].commits[OLD] = FILES | files
    assert "tower/config.json" not in [file.name for file in _list("hf:org/parts", "org/parts", None)[1]]
