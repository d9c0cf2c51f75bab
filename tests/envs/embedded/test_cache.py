"""Caches that several users share, and that some may only read."""

from __future__ import annotations

import errno
import os
import re
import runpy
from pathlib import Path

import pytest

from envs.doctor import check_cache
from envs.embedded.kernels.cache import cache_dirs, keep
from envs.embedded.kernels.jit import _LOCATES
from envs.embedded.render import cache
from envs.embedded.render.scene import load_scene
from tests.envs.embedded.render.glb_writer import GlbWriter, quad
from vlnbench.errors import UsageError
from vlnbench.util.durable.own import cache_dir, own_cache


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder in which others write too; the user's own is `home/vlnbench`."""
    monkeypatch.setenv("VLNBENCH_CACHE", str(tmp_path / "shared"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    return tmp_path / "shared"


def forbid(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int = errno.EROFS) -> None:
    """Let nothing be made in a folder, also by root, whom no mode stops."""
    make, below = os.open, str(folder)

    def opened(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        if flags & (os.O_CREAT | os.O_TMPFILE) and os.fspath(path).startswith(below):
            raise OSError(number, os.strerror(number), path)
        return make(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", opened)


def test_nobody_runs_code_from_a_folder_that_others_write(shared: Path, tmp_path: Path) -> None:
    own = tmp_path / "home" / "vlnbench"
    assert (cache_dir(), own_cache()) == (shared, own)
    assert cache_dirs("scenes") == [shared / "scenes", own / "scenes"]
    shared.chmod(0o755)
    assert own_cache() == shared
    assert cache_dirs("scenes") == [shared / "scenes"]
    if os.geteuid() == 0:
        os.chown(shared, 1234, 1234)
        assert own_cache() == own


def test_compiled_code_finds_a_place_where_nothing_else_can_be_written(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.chmod(0o755)
    forbid(monkeypatch, shared)
    assert own_cache() == tmp_path / "home" / "vlnbench"
    (tmp_path / "home" / "vlnbench").rmdir()
    (tmp_path / "home").rmdir()
    (tmp_path / "home").touch()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    found = own_cache()
    assert found == tmp_path / "tmp" / f"vlnbench-{os.geteuid()}"
    assert found.stat().st_mode & 0o777 == 0o700
    found.chmod(0o777)  # as whoever made it first would have it
    reason = r"cannot be used as a cache \(Read-only file system\); set VLNBENCH_CACHE to another folder"
    message = rf"^{shared}: {reason}$"
    with pytest.raises(UsageError, match=message):
        own_cache()


def test_a_shared_cache_is_read_and_what_is_missing_is_kept_elsewhere(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = GlbWriter()
    writer.mesh(*quad()[:2])
    for name in ("a", "b"):
        writer.save(tmp_path / f"{name}.glb")
    load_scene(tmp_path / "a.glb", *cache_dirs("scenes"))
    [ours] = (shared / "scenes").iterdir()
    umask = os.umask(0)
    os.umask(umask)
    assert ours.stat().st_mode & 0o777 == 0o666 & ~umask  # so that others can read it
    forbid(monkeypatch, shared)
    for name in ("a", "b"):
        load_scene(tmp_path / f"{name}.glb", *cache_dirs("scenes"))
    [kept] = (tmp_path / "home" / "vlnbench" / "scenes").iterdir()
    assert kept.name.startswith("b.")
    (finding,) = check_cache()
    assert finding.level == "ok"
    assert re.search(rf"{shared}; {tmp_path}/home/vlnbench, since ", finding.detail)


def test_a_full_disk_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch, tmp_path / "a", errno.ENOSPC)
    message = rf"^{tmp_path}/a: cannot write the cache \(No space left on device\); set VLNBENCH_CACHE to another"
    with pytest.raises(UsageError, match=message):
        keep([tmp_path / "a", tmp_path / "b"], "x", lambda path: os.close(os.open(path, os.O_CREAT)))


def test_a_scene_is_read_where_files_cannot_be_mapped(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    path = tmp_path / "a"
    path.write_bytes(b"some")
    monkeypatch.setattr(cache.mmap, "mmap", refuse)
    with path.open("rb") as file:
        assert cache._content(file) == b"some"


_TOY = """from envs.embedded.kernels.jit import kernel
FACTOR = {factor}
@kernel
def scaled(x):
    return FACTOR * x
"""


@pytest.mark.parametrize(("factor", "shared"), [(3, True), (4, False)])
def test_checkouts_share_kernels_of_equal_sources_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: int, shared: bool
) -> None:
    monkeypatch.setenv("VLNBENCH_CACHE", str(tmp_path / "cache"))
    for checkout, value in (("here", 3), ("there", factor)):
        (tmp_path / checkout / "toy").mkdir(parents=True)
        (tmp_path / checkout / "toy/scale.py").write_text(_TOY.format(factor=value))
    here, there = (
        runpy.run_path(str(tmp_path / checkout / "toy/scale.py"))["scaled"] for checkout in ("here", "there")
    )
    assert (here(7), there(7)) == (21, 7 * factor)
    assert sum(here.stats.cache_hits.values()) == 0
    assert sum(there.stats.cache_hits.values()) == (shared and _LOCATES)
