"""Checkpoint files are read as data: what is hostile, damaged or too large ends in one line and runs nothing."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.vlnce.pth.container import open_container
from agents.vlnce.pth.pickles import Storage, StoredTensor, read_pickle
from tests.agents.vlnce import released
from vlnbench.errors import UsageError

HOSTILE = ("config", "config_legacy", "state_dict", "torch_prefix")


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._reduced = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._reduced


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_all(path: Path) -> None:
    """Open a checkpoint and read every tensor."""
    with open_container(path) as container:
        for value in container.content["state_dict"].values():
            container.tensor(value)


def refused(path: Path) -> str:
    """The line with which a file is refused."""
    with pytest.raises(UsageError) as raised:
        read_all(path)
    line = str(raised.value)
    assert "\n" not in line
    assert line.startswith(str(path))
    return line


@pytest.mark.parametrize("legacy", [False, True])
def test_tensors_and_settings_come_back(here: Path, legacy: bool) -> None:
    wide = torch.arange(12.0).view(3, 4)
    state = {"a": wide, "b": wide.t(), "c": wide[1:, 2], "scalar": torch.tensor(7), "none": torch.ones(0, 3)}
    model = {"x": 1.5, "on": True, "off": None, "list": [1, ["two"]], "pair": (1, 2, 3, 4)}
    values = {"MODEL": model, "n": -(2**40)}
    released.write(here / "a.pth", state, values, legacy=legacy)
    with open_container(here / "a.pth") as container:
        assert container.content["config"] == values
        for key, value in state.items():
            found = container.tensor(container.content["state_dict"][key])
            assert torch.equal(found, value)
            assert found.dtype == value.dtype
            assert found.is_contiguous()


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("function", [open, torch.serialization._open_file, eval])
def test_a_call_is_refused_and_not_made(here: Path, legacy: bool, function: Callable[..., Any]) -> None:
    arguments = ("open('PWNED', 'w')",) if function is eval else ("PWNED", "w")
    call = Call(function, *arguments)
    for state, values in (({"a": torch.ones(2)}, {"notes": call}), ({"a": call}, {"notes": ""})):
        path = released.write(here / "hostile.pth", state, values, legacy=legacy)
        assert "nothing was run" in refused(path)
        assert not (here / "PWNED").exists()


@pytest.mark.parametrize("name", HOSTILE)
def test_recorded_hostile_files(shared: Path, here: Path, name: str) -> None:
    path = shared / f"goldens/vlnce_cma/checkpoints/malicious_{name}.pth"
    assert "nothing was run" in refused(path)
    assert not list(here.iterdir())


def test_a_class_of_the_users_own(here: Path) -> None:
    path = released.write(here / "a.pth", {"a": torch.ones(2)}, {"path": Path("x")})
    assert "names pathlib" in refused(path)


def raw(content: bytes) -> Any:
    return read_pickle(io.BytesIO(content), "file.pth")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"\x80\x02.", "damaged"),
        (b"\x80\x02}", "cut off"),
        (b"\x80\x02X\xff\xff\xff\xffab.", "damaged"),
        (b"\x80\x02h\x07.", "damaged"),
        (b"\x80\x02K\x01K\x02s.", "damaged"),
        (b"\x80\x02)}b.", "damaged"),
        (b"\x80\x02K\x01\x85R.", "damaged"),
        (b"\x80\x02}(K\x01\x85K\x02u.", "damaged"),
        (b"\x80\x02ccollections\nOrderedDict\n(]tR.", "damaged"),
        (b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00N.", "FRAME"),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\x00\x00.", "damaged"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"(S'os'\nios\nsystem\n.", "STRING"),
        (b"\x80\x02cos\nsystem\n.", "names os system"),
        (b"\x80\x02c__builtin__\neval\n.", "names __builtin__ eval"),
    ],
)
def test_a_broken_or_foreign_pickle(content: bytes, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        raw(content)


def test_a_memo_far_away_takes_no_memory() -> None:
    tracemalloc.start()
    assert raw(b"\x80\x02Nr\xff\xff\xff\x7f.") is None
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@given(st.binary(max_size=300))
def test_any_bytes_are_data_or_one_line(content: bytes) -> None:
    with contextlib.suppress(UsageError):
        raw(b"\x80\x02" + content)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_is_data_or_one_line(place: int, value: int) -> None:
    made = pickle.dumps({"state_dict": {"a": [1, 2.5, "x", None]}, "epoch": 3, 7: (1, 2, 3, 4)}, protocol=2)
    changed = bytearray(made)
    changed[place % len(made)] = value
    with contextlib.suppress(UsageError):
        raw(bytes(changed))


@pytest.mark.parametrize(
    ("offset", "shape", "stride"),
    [
        (0, (4, 4), (4, 1)),
        (1, (3, 4), (4, 1)),
        (0, (2, 3), (10, 1)),
        (0, (1 << 40,), (0,)),
        (-1, (2,), (1,)),
        (0, (2,), (-1,)),
        (0, (2,), (1, 1)),
        (0, (True,), (1,)),
    ],
)
def test_a_tensor_not_in_its_storage(offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a tensor"):
        StoredTensor(Storage("0", "float32", 12), offset, shape, stride)


def repack(path: Path, change: Callable[[zipfile.ZipFile, str, bytes], None]) -> None:
    """Write a zip checkpoint anew, member by member."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            change(archive, name, content)


def packed(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(name, content, zipfile.ZIP_DEFLATED)


def without_data(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    if not name.endswith("data/0"):
        archive.writestr(name, content)


def shorter_data(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(name, content[:8] if name.endswith("data/0") else content)


def without_pickle(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    if not name.endswith("data.pkl"):
        archive.writestr(name, content)


def big_endian(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(name, b"big" if name.endswith("byteorder") else content)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (packed, "is packed"),
        (without_data, "data/0 is absent"),
        (shorter_data, "data/0 is absent or of another length"),
        (without_pickle, "0 data.pkl"),
        (big_endian, "big-endian"),
    ],
)
def test_a_zip_that_torch_would_not_write(here: Path, change: Callable[..., None], line: str) -> None:
    path = released.write(here / "a.pth", {"a": torch.arange(100.0)}, {"MODEL": {}})
    repack(path, change)
    assert line in refused(path)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_file_cut_anywhere(here: Path, legacy: bool) -> None:
    path = released.write(here / "a.pth", {"a": torch.arange(100.0)}, {"MODEL": {"x": 1}}, legacy=legacy)
    whole = path.read_bytes()
    for length in {*range(0, len(whole), 37), len(whole) - 1}:
        path.write_bytes(whole[:length])
        refused(path)


def test_a_legacy_storage_with_a_false_count(here: Path) -> None:
    path = released.write(here / "a.pth", {"a": torch.arange(100.0)}, {"MODEL": {}}, legacy=True)
    whole = path.read_bytes()
    for count in (-1, 99, 101, 1 << 60):
        path.write_bytes(whole[:-408] + struct.pack("<q", count) + whole[-400:])
        assert "storage" in refused(path)


def test_a_pickle_larger_than_any_checkpoints(here: Path) -> None:
    path = released.write(here / "a.pth", {"a": torch.ones(2)}, {"notes": "x" * (9 << 20)})
    assert "longer than a checkpoint" in refused(path)
    released.write(path, {"a": torch.ones(2)}, {"notes": "x" * (9 << 20)}, legacy=True)
    assert "more than 8 MB" in refused(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"hello", b"\x80\x02K\x01.\x80\x02K\x01.\x80\x02K\x01."])
def test_what_is_no_checkpoint(here: Path, content: bytes) -> None:
    (here / "a.pth").write_bytes(content)
    refused(here / "a.pth")


def test_no_file_and_a_folder(here: Path) -> None:
    assert "cannot be read" in refused(here / "none.pth")
    assert "expected a file, found a folder" in refused(here)
