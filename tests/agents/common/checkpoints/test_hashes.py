"""Hashes of large files are remembered, and only of what has not changed since."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agents.common.checkpoints import hashes
from agents.common.checkpoints.hashes import content_hash
from vlnbench.util.durable import facts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files that count as large, and a cache of the user's own beside them."""
    monkeypatch.setenv("VLNBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(facts, "LARGE", 8)
    monkeypatch.setattr(facts, "SETTLED_S", -3600.0)  # a time of change cannot be set back
    (tmp_path / "model").mkdir()
    for name, text in (("a", "12345"), ("b", "67890")):
        (tmp_path / "model" / name).write_text(text)
    return tmp_path / "model"


def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever files are read for their hash."""
    times: list[int] = []
    computed = hashes._computed

    def counted(files: list[Path]) -> str:
        times.append(len(files))
        return computed(files)

    monkeypatch.setattr(hashes, "_computed", counted)
    return times


def test_a_large_checkpoint_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times, files = read(monkeypatch), sorted(folder.iterdir())
    first = content_hash(files)
    assert content_hash(iter(files)) == first
    assert times == [2]
    assert content_hash(files[::-1]) != first
    (folder.parent / "link").symlink_to(files[0])  # as caches of hubs have them, by other names
    assert content_hash([folder.parent / "link", files[1]]) != first
    assert len(times) == 3


@pytest.mark.parametrize("how", ["in place", "with its time set back", "another file of that name"])
def test_what_has_changed_is_read_again(folder: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times, files = read(monkeypatch), sorted(folder.iterdir())
    before, of = content_hash(files), files[0].stat()
    target = files[0] if how != "another file of that name" else folder.parent / "new"
    target.write_text("54321")
    if how != "in place":
        os.utime(target, ns=(of.st_atime_ns, of.st_mtime_ns))
    if target != files[0]:
        os.replace(target, files[0])
    assert content_hash(files) != before
    assert times == [2, 2]


def test_what_is_young_or_small_or_has_nowhere_to_be_remembered_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, files = read(monkeypatch), sorted(folder.iterdir())
    with monkeypatch.context() as young:
        young.setattr(facts, "SETTLED_S", 3600.0)
        assert content_hash(files) == content_hash(files)
    with monkeypatch.context() as small:
        small.setattr(facts, "LARGE", 11)
        assert content_hash(files) == content_hash(files)
    monkeypatch.setattr(hashes, "own_cache", lambda: folder / "a" / "no folder")
    assert content_hash(files) == content_hash(files)
    assert times == [2] * 6


def test_a_damaged_memory_is_no_hash(folder: Path) -> None:
    files = sorted(folder.iterdir())
    first = content_hash(files)
    (kept,) = (folder.parent / "cache" / "hashes").glob("*/digest")
    for damage in ("", "f" * 63, "é" * 40, "f" * 70):
        kept.write_text(damage)
        assert content_hash(files) == first
