"""Locks on file systems that can lock, cannot, or whose machines do not see one another's."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from vlnbench.errors import RunError
from vlnbench.util.durable import files, locks
from vlnbench.util.durable.locks import LOCK, check_held, held, in_use, locked
from vlnbench.util.durable.owners import InUseError, Owner, myself

REFUSALS = ["ENOLCK", "ENOSYS", "EOPNOTSUPP", "EINVAL", "EBADF", "EIO"]
FILE_SYSTEMS = ["locks", "locks, shared", *REFUSALS]
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("BEAT_S", 0.02), ("GONE_S", 0.3), ("_POLL_S", 0.02), ("_SETTLE_S", 0.05)):
        monkeypatch.setattr(locks, name, seconds)
    monkeypatch.setattr(locks, "_LOOKS_S", 0.05)


@pytest.fixture(params=FILE_SYSTEMS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return behave(request.param, monkeypatch)


def behave(kind: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let all folders lie on such a file system."""
    monkeypatch.setattr(locks, "_shared", lambda folder: kind == "locks, shared")
    if kind in REFUSALS:
        number = getattr(errno, kind)

        def flock(file: int, how: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)
    return kind


def someone(**changes: object) -> Owner:
    return replace(myself(True), **changes)  # type: ignore[arg-type]


def leave(folder: Path, owner: Owner) -> Path:
    (folder / LOCK).write_bytes(owner.encode())
    return folder / LOCK


def ended() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_folder_has_one_writer(tmp_path: Path, kind: str) -> None:
    me = rf"process {os.getpid()} on \S+"
    with locked(tmp_path):
        assert in_use(tmp_path)
        for _ in range(2):
            with pytest.raises(InUseError, match=rf"^{tmp_path}: another process is writing there \({me}\);"):
                locked(tmp_path).__enter__()
        time.sleep(0.05)
        assert in_use(tmp_path)
        check_held()
    assert not in_use(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not in_use(tmp_path / "not there")
    with pytest.raises(FileNotFoundError), locked(tmp_path / "not there"):
        pass


def test_waiting_for_a_lock_does_not_refuse(tmp_path: Path, kind: str) -> None:
    inside: list[int] = []

    def work() -> None:
        with held(tmp_path / "a.lock", wait=True):
            inside.append(1)
            assert sum(inside) == 1
            time.sleep(0.02)
            inside.append(-1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inside == [1, -1] * 4


def test_whoever_looks_does_not_keep_a_writer_out(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    with (tmp_path / LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.02, lambda: fcntl.flock(file, fcntl.LOCK_UN)).start()
        with locked(tmp_path):
            pass


def test_a_lock_of_a_killed_process_is_taken_over(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = someone(pid=ended(), locked=kind not in REFUSALS)
    leave(tmp_path, owner)
    assert not in_use(tmp_path)
    with locked(tmp_path):
        assert in_use(tmp_path)
    said = capsys.readouterr().err
    line = f"{tmp_path}: {owner} is gone without letting go of it; taken over\n"
    assert said == (line if kind in REFUSALS else "")  # elsewhere the kernel knows, and nobody needs to


def test_a_process_of_the_same_number_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behave("ENOSYS", monkeypatch)
    leave(tmp_path, someone(started=1, locked=False))
    assert not in_use(tmp_path)
    leave(tmp_path, someone(locked=False))
    assert in_use(tmp_path)


@pytest.mark.parametrize("kind", ["locks, shared", "ENOLCK"], indirect=True)
def test_a_lock_of_another_machine_is_watched(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = someone(host="node7", boot="another", locked=kind not in REFUSALS)
    path = leave(tmp_path, owner)
    ends = threading.Event()

    def touch() -> None:
        while not ends.wait(0.02):
            os.utime(path)

    other = threading.Thread(target=touch)
    other.start()
    assert in_use(tmp_path)
    with pytest.raises(InUseError, match=rf"\(process {owner.pid} on node7\)"):
        locked(tmp_path).__enter__()
    ends.set()
    other.join()
    with locked(tmp_path):
        pass
    looking, taken = capsys.readouterr().err.splitlines()
    assert looking == f"{tmp_path}: locked by {owner}; looking for up to 0.3 s whether it is still at work"
    assert taken == f"{tmp_path}: {owner} is gone without letting go of it; taken over"
    os.utime(leave(tmp_path, owner), (1, 1))
    assert not in_use(tmp_path)


@pytest.mark.parametrize("kind", ["ENOLCK"], indirect=True)
def test_a_lock_that_has_just_been_made_has_its_makers_name_in_a_moment(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "BEAT_S", 20.0)
    path = tmp_path / LOCK
    path.touch()
    owner = someone(host="node7", boot="another", locked=False)
    maker = threading.Timer(0.1, lambda: path.write_bytes(owner.encode()))
    maker.start()
    with pytest.raises(InUseError, match=rf"\(process {owner.pid} on node7\)"):
        locked(tmp_path).__enter__()
    maker.join()


@pytest.mark.parametrize("kind", ["locks, shared", "ENOLCK"], indirect=True)
def test_whoever_was_taken_over_writes_nothing_more(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process that was stopped for minutes and goes on."""
    ends: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: ends.append(number))
    with locked(tmp_path), files.open_for_append(tmp_path / "rows.jsonl") as rows:
        files.append_line(rows, {})
        leave(tmp_path, someone(host="node7"))
        locks._touched[tmp_path / LOCK].seen -= 1
        taken = (
            rf"^{tmp_path}: process \d+ on node7 has taken it over; this process, \d+, writes nothing more there$"
        )
        for write in (lambda: files.append_line(rows, {}), lambda: files.write_json(tmp_path / "a.json", {})):
            with pytest.raises(RunError, match=taken):
                write()
    assert (tmp_path / "rows.jsonl").read_text() == "{}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK, "rows.jsonl"]
    check_held()
    with locked(tmp_path / "..", wait=True):
        (tmp_path.parent / LOCK).unlink()
        locks._touched[(tmp_path / ".." / LOCK)].seen -= 1
        with pytest.raises(RunError, match=r"\.lock was removed; this process"):
            check_held()


def test_the_thread_that_touches_ends_the_process_that_was_taken_over(tmp_path: Path) -> None:
    script = f"""
import os, time
from pathlib import Path
from vlnbench.util.durable import locks
locks.BEAT_S = 0.05
locks._shared = lambda folder: True
with locks.locked(Path({str(tmp_path)!r})):
    Path({str(tmp_path / LOCK)!r}).unlink()
    time.sleep(20)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == -signal.SIGTERM
    assert ": .lock was removed; this process, " in run.stderr


@pytest.mark.parametrize("kind", ["ENOLCK"], indirect=True)
def test_of_two_that_take_over_one_has_it(tmp_path: Path, kind: str) -> None:
    leave(tmp_path, someone(pid=ended(), locked=False))
    have: list[int] = []

    def take() -> None:
        with contextlib.suppress(InUseError), locked(tmp_path):
            have.append(1)
            time.sleep(0.3)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert have == [1]


@pytest.mark.parametrize("kind", ["ENOLCK"], indirect=True)
@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff" * 600, "a name that is none"])
def test_what_is_no_owner_is_taken_over(tmp_path: Path, content: bytes | str, kind: str) -> None:
    strange = json.dumps(asdict(someone(host="\x1b[31m"))).encode()
    (tmp_path / LOCK).write_bytes(content if isinstance(content, bytes) else strange)
    with locked(tmp_path):
        assert in_use(tmp_path)


WRITER = """
import fcntl, os, random, sys, time
from pathlib import Path
from vlnbench.errors import UsageError
from vlnbench.util.durable import files, locks

def refuse(file, how):
    raise OSError(38, "Function not implemented")

locks.BEAT_S, locks.GONE_S, locks._POLL_S, locks._SETTLE_S, locks._LOOKS_S = 0.05, 0.5, 0.05, 0.1, 0.02
fcntl.flock = refuse
folder, end = Path(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    try:
        with locks.locked(folder), files.open_for_append(folder / "rows.jsonl") as rows:
            for what in ("begin", "end"):
                files.append_line(rows, {what: os.getpid()})
                time.sleep(random.random() / 100)
                if what == "begin" and random.random() < 0.05:
                    os.kill(os.getpid(), 9)
    except UsageError:
        time.sleep(random.random() / 100)
"""


def test_processes_that_are_killed_never_write_beside_another(tmp_path: Path) -> None:
    """Where nothing can be locked: what one began, it ended before another began, unless it was killed."""
    killed, end = set[int](), time.monotonic() + 2.0
    running: list[subprocess.Popen[bytes]] = []
    while (left := end - time.monotonic()) > 0 or running:
        running += [
            subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(left)], cwd=ROOT)
            for _ in range(3 - len(running) if left > 0.5 else 0)
        ]
        killed |= {process.pid for process in running if process.poll() == -signal.SIGKILL}
        running = [process for process in running if process.poll() is None]
        time.sleep(0.02)
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(lines) > 20
    inside: int | None = None
    for line in lines:
        if "end" in line:
            assert inside == line["end"]
        else:
            assert inside is None or inside in killed
        inside = line.get("begin")


def test_nothing_is_written_through_a_link_and_no_pipe_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / LOCK).symlink_to(tmp_path / "mine.txt")
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(OSError, match="symbolic link"), locked(tmp_path):
        pass
    assert (in_use(tmp_path), (tmp_path / "mine.txt").read_text()) == (False, "mine")
    (tmp_path / LOCK).unlink()
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(OSError, match="Illegal seek"), locked(tmp_path):
        pass
    assert not in_use(tmp_path)


def test_a_disk_without_room_for_a_lock_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"), locked(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_fork_of_the_holder_leaves_the_lock_alone(tmp_path: Path) -> None:
    with locked(tmp_path):
        script = f"""
import os
from pathlib import Path
from vlnbench.util.durable.locks import locked
with locked(Path({str(tmp_path / "a")!r})):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        assert Path({str(tmp_path / "a" / LOCK)!r}).exists()
"""
        (tmp_path / "a").mkdir()
        subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.parametrize(
    ("line", "shared"),
    [
        ("1 2 8:1 / / rw - ext4 /dev/a rw", False),
        ("1 2 8:1 / / rw - overlay overlay rw", False),
        (r"1 2 0:9 / /lab\040home rw - nfs4 server:/ rw", True),
        (r"1 2 0:9 / /lab\040home rw - lustre server:/ rw", True),
        (r"1 2 0:9 / /lab rw - nfs server:/ rw", None),
    ],
)
def test_file_systems_of_one_machine_are_known(
    monkeypatch: pytest.MonkeyPatch, line: str, shared: bool | None
) -> None:
    mounts = f"1 2 8:1 / / rw - xfs /dev/a rw\n{line}\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: mounts)
    locks._is_shared.cache_clear()
    assert locks._is_shared("/lab home/me") is bool(shared)
    monkeypatch.setattr(locks, "_EXPORTS", Path(__file__))  # a server, whose own disks others mount
    locks._is_shared.cache_clear()
    assert locks._is_shared("/lab home/me")
    locks._is_shared.cache_clear()


@pytest.mark.parametrize("kind", ["ENOLCK", "EBADF"], indirect=True)
def test_leftovers_go_after_a_while_where_they_cannot_be_locked(tmp_path: Path, kind: str) -> None:
    of_here, elsewhere = f"{files._place():05}", f"{(files._place() + 1) % 10**5:05}"
    running, killed = f"{os.getpid():08}123456", f"{ended():08}123456"
    kept = [f".a.json.{number}" for number in ("1", of_here + running, elsewhere + killed)]
    gone = [f".a.json.{number}" for number in ("2", of_here + killed)]
    for name in (*kept, *gone):
        (tmp_path / name).touch()
    os.utime(tmp_path / gone[0], (1, 1))
    files.write_bytes(tmp_path / "a.json", b"new")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "a.json"}


@pytest.fixture(autouse=True)
def nothing_stays_held() -> Iterator[None]:
    yield
    assert locks._touched == {}
