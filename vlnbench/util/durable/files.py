"""Durable files: replaced in one step or appended line by line, on disk when a call returns."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import re
import secrets
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from vlnbench.errors import RunError, UsageError
from vlnbench.util.durable.limits import MAX_VALUE, open_gzip, read_bounded, reading, regular
from vlnbench.util.durable.locks import check_held, flock, is_at
from vlnbench.util.durable.owners import is_running, machine

_BLOCK = 65536
_LINES = 1 << 17
_ABANDONED_S = 600.0


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UsageError if it cannot be read."""
    with reading(path):
        content = read_bounded(path)
    try:
        found = _DECODER.decode(content.decode(json.detect_encoding(content)))  # of UTF-8, a byte order mark goes
    except ValueError as error:
        raise UsageError(f"{path}: broken JSON ({error})") from error
    except RecursionError as error:
        raise UsageError(f"{path}: broken JSON (nested too deep)") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: expected an object")
    return found


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line of `line_blocks`. Raises UsageError naming the line that holds none."""
    for first, lines in line_blocks(path):
        for number, line in enumerate(lines, first):
            yield number, decode_line(line, f"{path}: line {number}")


def line_blocks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """(number of the first, complete lines) of each block of a file, without their ends.

    A torn last line is what a killed process leaves: skipped. Where the file is absent, it may lie there
    compressed, as in committed runs: `<name>.gz`.
    """
    packed = path.with_name(f"{path.name}.gz")
    with reading(path):
        there = path.exists(), packed.exists()
    if not any(there):
        return
    with reading(path), regular(path).open("rb") if there[0] else _unpacked(packed) as file:
        number, rest = 1, b""
        for block in iter(lambda: file.read(_LINES), b""):
            *lines, rest = (rest + block).split(b"\n")
            sizes = [*map(len, lines), len(rest)]
            if max(sizes) >= MAX_VALUE:
                where = f"{path}: line {number + sizes.index(max(sizes))}"
                raise UsageError(f"{where}: {MAX_VALUE >> 20} MiB or more; expected shorter lines")
            if lines:
                yield number, lines
                number += len(lines)


def file_size(path: Path) -> int:
    """Bytes of a file, 0 where there is none."""
    with reading(path):
        return path.stat().st_size if path.exists() else 0


def decode_line(line: bytes, where: str) -> dict[str, Any]:
    """The object in a line. where: file and line. Raises UsageError for anything else."""
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        entry = _decode_slowly(line, where)
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: expected an object")
    return entry


def _decode_slowly(line: bytes, where: str) -> Any:
    """A line of which something is unusual, by the decoder that says what."""
    try:
        return _DECODER.decode(line.decode())
    except ValueError as error:
        raise UsageError(f"{where}: broken JSON ({error})") from error
    except RecursionError as error:
        raise UsageError(f"{where}: broken JSON (nested too deep)") from error


def _unpacked(path: Path) -> BinaryIO:
    """A compressed file as a whole: half of one must not pass for a torn line."""
    try:
        with regular(path).open("rb") as file:
            return io.BytesIO(open_gzip(file, path).read())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path}: broken gzip file ({error})") from error


def count_lines(path: Path) -> int:
    """Complete lines of a file, 0 where there is none."""
    with reading(path):
        if not path.exists():
            return 0
        with regular(path).open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))


def pack(content: bytes) -> bytes:
    """Content of a `.gz` file, the same for the same content."""
    return gzip.compress(content, mtime=0)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are kept once for all lines."""
    return {sys.intern(name): value for name, value in pairs}


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file as `write_bytes` does."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step, see `replacing`."""
    with replacing(path) as file:
        write_all(file, content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[int]:
    """Descriptor of an empty file, which takes the place of `path` when the block ends without an exception.

    A reader sees the old file or the new one, never half of one. A process that is killed meanwhile leaves
    `.<name>.<number>` behind, which the next one to replace the file removes. The folder is opened once: what
    takes its place meanwhile gets nothing. Raises RunError where a lock of this process has been taken over.
    """
    check_held()
    remove_leftovers(path.parent, path.name)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        temporary, file = _open_temporary(path, folder)
        try:
            yield file
            os.fsync(file)
            check_held()
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise
        finally:
            os.close(file)
    finally:
        os.close(folder)


def leftover_of(path: Path) -> str | None:
    """Name of the file for which `replacing` made this temporary one; None for any other path."""
    match = re.fullmatch(r"\.(.+\.[a-z]+)\.\d+", path.name)
    return match[1] if match and path.is_file() and not path.is_symlink() else None


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left of files, or of the one called `name`, that they were writing in a folder.

    A temporary file is locked as long as it is being written, and stays then. Where the file system cannot lock,
    it stays while its process runs, or for a while if that is one of another machine.
    """
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        of = leftover_of(path)
        if of is None or name not in (None, of):
            continue
        with contextlib.suppress(FileNotFoundError, BlockingIOError, PermissionError):  # gone, in use, another's
            file = os.open(path, os.O_RDWR)
            try:
                if (flock(file) or _abandoned(path, file)) and is_at(file, path):
                    path.unlink()  # else it has been put in place meanwhile, and another is written
            finally:
                os.close(file)


def _open_temporary(path: Path, folder: int) -> tuple[str, int]:
    """Name and descriptor of a new file in an open folder, locked, that is to take the place of another."""
    while True:
        temporary = f".{path.name}.{_place():05}{os.getpid():08}{secrets.randbelow(10**6):06}"
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
        with contextlib.suppress(BlockingIOError):
            flock(file)
            if is_at(file, temporary, folder):
                return temporary, file
        os.close(file)  # a process that removes leftovers was faster


def _abandoned(path: Path, file: int) -> bool:
    """Whether nobody is writing a temporary file, which cannot be locked."""
    number = path.suffix[1:]
    if len(number) == 19 and number.startswith(f"{_place():05}"):
        return is_running(int(number[5:13])) is False
    return time.time() - os.fstat(file).st_mtime > _ABANDONED_S


def _place() -> int:
    """Of the machine and its name space of process numbers, all but surely another number elsewhere."""
    return zlib.crc32("".join(machine()).encode()) % 10**5


def encode_line(entry: Mapping[str, Any]) -> bytes:
    """One line of a JSON Lines file."""
    return json.dumps(entry, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def append_line(file: int, entry: Mapping[str, Any]) -> None:
    """Add a line to a JSON Lines file; when this returns, it is on disk."""
    write_all(file, encode_line(entry))


def write_all(file: int, content: bytes) -> None:
    """Write all of it, onto the disk. Unbuffered: after a failure, nothing is left to be written later.

    Raises RunError where a lock of this process has been taken over.
    """
    check_held()
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fsync(file)


@contextlib.contextmanager
def open_for_append(path: Path) -> Iterator[int]:
    """Descriptor of a file opened for appending, after cutting off a torn last line.

    Raises UsageError for a link: whoever made the folder would choose which file of this user grows.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UsageError(f"{path}: a link, through which nothing is written; expected a file") from error
    try:
        size = end = os.fstat(file).st_size
        while end and os.pread(file, 1, end - 1) != b"\n":
            end = _last_newline(file, end)
        if end != size:
            os.ftruncate(file, end)
        yield file
    finally:
        os.close(file)


def _last_newline(file: int, end: int) -> int:
    """Offset behind the last newline before `end` within one block, or where that block starts."""
    start = max(0, end - _BLOCK)
    return start + os.pread(file, end - start, start).rfind(b"\n") + 1


def stopped(path: Path, error: OSError) -> RunError:
    """What to raise when a file of a run cannot be written: the run stops and can be resumed."""
    return RunError(
        f"{path}: cannot be written ({error.strerror}); what is recorded is safe: run the same command again when "
        "that is mended"
    )
