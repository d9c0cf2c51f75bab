"""Files of a run, one function at a time; what happens when processes are killed is in test_folder."""

from __future__ import annotations

import fcntl
import gzip
import os
from pathlib import Path

import pytest

from vlnbench.errors import UsageError
from vlnbench.util.durable import files
from vlnbench.util.durable.files import (
    append_line,
    encode_line,
    leftover_of,
    open_for_append,
    pack,
    read_jsonl,
    read_object,
    remove_leftovers,
    replacing,
    stopped,
    write_all,
    write_bytes,
    write_json,
)
from vlnbench.util.durable.locks import in_use


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_object_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(UsageError, match=rf"^{path}: cannot be read \(No such file or directory\)$"):
        read_object(path)
    path.write_bytes('{"a": "ä"}'.encode())
    assert read_object(path) == {"a": "ä"}
    for content, message in (
        (b"{", r"broken JSON \(.+\)"),
        (b"\xff", r"broken JSON \(.+\)"),
        (b"[1]", "expected an object"),
    ):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=rf"^{path}: {message}$"):
            read_object(path)


def test_lines_come_with_their_numbers_and_a_torn_one_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert list(read_jsonl(path)) == []
    path.write_text('{"a":1}\n{"b":2}\n{"torn":')
    assert list(read_jsonl(path)) == [(1, {"a": 1}), (2, {"b": 2})]
    path.write_text('{"a":1}\n{"b":2}')  # whole, but for all we know torn
    assert list(read_jsonl(path)) == [(1, {"a": 1})]
    for content, message in (
        ('{"a":1}\n{\n{}\n', r"line 2: broken JSON \(.+\)"),
        ("3\n", "line 1: expected an object"),
    ):
        path.write_text(content)
        with pytest.raises(UsageError, match=rf"^{path}: {message}$"):
            list(read_jsonl(path))


def test_names_in_lines_are_kept_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a name of its own":1}\n' * 2)
    first, second = (next(iter(entry)) for _, entry in read_jsonl(tmp_path / "a.jsonl"))
    assert first is second


def test_lines_may_be_compressed(tmp_path: Path) -> None:
    path, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"a":1}\n{"b":2}\n'))
    assert list(read_jsonl(path)) == [(1, {"a": 1}), (2, {"b": 2})]
    path.write_text('{"c":3}\n')  # comes first
    assert list(read_jsonl(path)) == [(1, {"c": 3})]
    path.unlink()
    whole = packed.read_bytes()
    for broken in (whole[:-9], b"no gzip", whole[:12] + b"\xff\xff\xff" + whole[15:]):
        packed.write_bytes(broken)
        with pytest.raises(UsageError, match=rf"^{packed}: broken gzip file \(.+\)$"):
            list(read_jsonl(path))


def test_the_same_content_is_packed_to_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    first = pack(b"content")
    monkeypatch.setattr("time.time", lambda: 1e9)
    assert pack(b"content") == first
    assert gzip.decompress(first) == b"content"
    assert first[4:8] == bytes(4)  # no time


def test_json_is_written_for_people(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": [1, None]})
    assert (tmp_path / "a.json").read_bytes() == b'{\n  "a": [\n    1,\n    null\n  ]\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert names(tmp_path) == ["a.json"]


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_bytes(path, b"a longer one")
    with replacing(path) as file:
        write_all(file, b"new")
        assert path.read_bytes() == b"a longer one"
        [temporary, name] = names(tmp_path)
        assert (leftover_of(tmp_path / temporary), name) == ("a.json", "a.json")
    assert path.read_bytes() == b"new"
    with pytest.raises(OSError, match="Bad file descriptor"), replacing(path):
        write_all(-1, b"half")
    assert (names(tmp_path), path.read_bytes()) == (["a.json"], b"new")
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    old = os.umask(0)
    os.umask(old)
    return old


def opened(file: int) -> str:
    path = Path(os.readlink(f"/proc/self/fd/{file}"))
    return leftover_of(path) or path.name


def test_files_are_on_disk_and_closed_when_a_call_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def sync(file: int) -> None:
        synced.append(opened(file))
        fsync(file)

    monkeypatch.setattr(os, "fsync", sync)
    open_files = len(os.listdir("/proc/self/fd"))
    write_bytes(tmp_path / "a.json", b"new")
    assert synced == ["a.json"] * 2
    with replacing(tmp_path / "b.json"):
        del synced[:]
    assert synced == ["b.json"]  # whatever the block did
    del synced[:]
    with open_for_append(tmp_path / "c.jsonl") as file:
        append_line(file, {"a": 1})
        assert synced == ["c.jsonl"]
    for name in (".d.json.1", ".e.json.2"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert in_use(tmp_path) is False
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_everything_is_written_however_little_goes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, bytes(content)[:3]))
    write_bytes(tmp_path / "a.json", b"0123456789")
    assert (tmp_path / "a.json").read_bytes() == b"0123456789"


def test_what_takes_the_place_of_the_folder_meanwhile_gets_nothing(tmp_path: Path) -> None:
    folder, moved, elsewhere = (tmp_path / name for name in ("folder", "moved", "elsewhere"))
    folder.mkdir()
    elsewhere.mkdir()
    with replacing(folder / "a.json") as file:
        folder.rename(moved)
        folder.symlink_to(elsewhere)
        os.write(file, b"{}")
    assert list(elsewhere.iterdir()) == []
    assert [each.name for each in moved.iterdir()] == ["a.json"]


def test_leftovers_are_files_that_this_module_names_so(tmp_path: Path) -> None:
    found = {
        ".a.json.12": "a.json",
        ".a.b.jsonl.3": "a.b.jsonl",
        "a.json.12": None,
        ".a.json": None,
        ".a.json.12x": None,
        ".a.json.x12": None,
        ".a.12": None,
        ".a.JSON.12": None,
        ".json.12": None,
    }
    for name, of in found.items():
        (tmp_path / name).touch()
        assert leftover_of(tmp_path / name) == of, name
    (tmp_path / ".b.json.1").mkdir()
    (tmp_path / ".c.json.1").symlink_to(tmp_path / "a.json.12")
    for name in (".b.json.1", ".c.json.1", ".d.json.1"):
        assert leftover_of(tmp_path / name) is None, name
    remove_leftovers(tmp_path, "a.json")
    assert ".a.json.12" not in names(tmp_path)
    assert ".a.b.jsonl.3" in names(tmp_path)
    remove_leftovers(tmp_path)
    kept = [name for name, of in found.items() if of is None]
    assert names(tmp_path) == sorted([*kept, ".b.json.1", ".c.json.1"])
    remove_leftovers(tmp_path / "a.json.12")
    remove_leftovers(tmp_path / "not there")


def test_a_temporary_file_that_took_its_place_meanwhile_is_no_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between finding it and locking it, its process put it in place, and another process began the next one."""
    path, held = tmp_path / ".a.json.12", fcntl.flock

    def lock(file: int, how: int) -> None:
        held(file, how)
        path.rename(tmp_path / "a.json")
        path.write_text("the next one")

    path.touch()
    monkeypatch.setattr(fcntl, "flock", lock)
    remove_leftovers(tmp_path)
    assert (names(tmp_path), path.read_text()) == ([path.name, "a.json"], "the next one")


def test_a_leftover_that_another_process_removed_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".a.json.12").touch()
    monkeypatch.setattr(fcntl, "flock", lambda *_: (tmp_path / ".a.json.12").unlink())
    remove_leftovers(tmp_path)
    assert names(tmp_path) == []


def test_a_temporary_file_that_was_removed_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, calls = fcntl.flock, []

    def lock(file: int, how: int) -> None:
        calls.append(how)
        if len(calls) == 1:
            raise BlockingIOError
        held(file, how)
        if len(calls) == 2:
            os.unlink(os.readlink(f"/proc/self/fd/{file}"))

    monkeypatch.setattr(fcntl, "flock", lock)
    open_files = len(os.listdir("/proc/self/fd"))
    write_bytes(tmp_path / "a.json", b"new")
    assert len(calls) == 3
    assert (tmp_path / "a.json").read_bytes() == b"new"
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_lines_are_short_and_are_json(tmp_path: Path) -> None:
    assert encode_line({"a": [1, 2], "b": "ä"}) == b'{"a":[1,2],"b":"\\u00e4"}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_line({"a": float("inf")})
    with open_for_append(tmp_path / "a.jsonl") as file:
        append_line(file, {"a": 1})
        append_line(file, {"b": 2})
    assert (tmp_path / "a.jsonl").read_bytes() == b'{"a":1}\n{"b":2}\n'
    assert (tmp_path / "a.jsonl").stat().st_mode & 0o777 == 0o666 & ~umask()


@pytest.mark.parametrize("kept", [b"", b'{"a":1}\n', b'{"a":1}\n{"b":2}\n', b"\n", b"x" * 20 + b"\n"])
def test_a_torn_line_is_cut_off_whatever_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bytes
) -> None:
    monkeypatch.setattr(files, "_BLOCK", 8)
    path = tmp_path / "a.jsonl"
    for torn in (b"", b"x", b"x" * 7, b"x" * 8, b"x" * 9, b"x" * 29):
        path.write_bytes(kept + torn)
        with open_for_append(path) as file:
            assert path.read_bytes() == kept
            append_line(file, {"c": 3})
        assert path.read_bytes() == kept + b'{"c":3}\n'


def test_a_whole_file_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def truncate(*_: object) -> None:
        raise AssertionError("cut")

    monkeypatch.setattr(os, "ftruncate", truncate)
    (tmp_path / "a.jsonl").write_bytes(b"{}\n")
    for name in ("a.jsonl", "new.jsonl"):
        with open_for_append(tmp_path / name):
            pass


def test_a_run_that_stops_says_that_it_can_go_on(tmp_path: Path) -> None:
    assert str(stopped(tmp_path, OSError(28, "No space left on device"))) == (
        f"{tmp_path}: cannot be written (No space left on device); what is recorded is safe: run the same command "
        "again when that is mended"
    )


def test_the_lock_of_a_file_in_the_making_is_respected(tmp_path: Path) -> None:
    path = tmp_path / ".a.json.12"
    path.touch()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remove_leftovers(tmp_path)
        assert names(tmp_path) == [".a.json.12"]
    with replacing(tmp_path / "b.json"):
        remove_leftovers(tmp_path)
    assert names(tmp_path) == ["b.json"]
