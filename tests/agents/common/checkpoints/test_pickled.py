"""Checkpoint files are read as data: what is hostile, damaged or too large ends in one line and runs nothing."""

from __future__ import annotations

import contextlib
import io
import pickle
import resource
import struct
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.common.checkpoints.pickled import MAX_PICKLE, read_pickled
from tests.agents.vlnce import released
from vlnbench.errors import UsageError

SETTINGS = ("habitat.config.default.Config",)
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


def refused(path: Path) -> str:
    """The line with which a file is refused."""
    with pytest.raises(UsageError) as raised:
        read_pickled(path, SETTINGS, checksums=True)
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
    content = read_pickled(here / "a.pth", SETTINGS)
    assert content["config"] == values
    assert not vars(content["config"])
    for key, value in state.items():
        assert torch.equal(content["state_dict"][key], value)
        assert content["state_dict"][key].dtype == value.dtype


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


class Rebuilt:
    """Pickles as a tensor of any shape in a storage of any length."""

    def __init__(self, claimed: int, *place: Any) -> None:
        self.storage, self._place = ("storage", torch.FloatStorage, "0", "cpu", claimed), place

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return torch._utils._rebuild_tensor_v2, (self, *self._place, False, OrderedDict())


class Claims(pickle.Pickler):
    """Writes `Rebuilt` tensors in the layout of torch.save."""

    def __init__(self, file: io.BytesIO, legacy: bool) -> None:
        super().__init__(file, 2)
        self._more, self._within = ((None,) if legacy else ()), set[int]()

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Rebuilt) or id(value) not in self._within:
            if isinstance(value, Rebuilt):
                self._within.add(id(value))
            return None
        return (*value.storage, *self._more)


def claiming(path: Path, legacy: bool, *claims: Any) -> Path:
    """A file with 12 numbers whose pickle claims one tensor: count, offset, shape, stride."""
    file = io.BytesIO()
    Claims(file, legacy).dump({"state_dict": {"a": Rebuilt(*claims)}})
    numbers = torch.arange(12.0).numpy().tobytes()
    if legacy:
        head = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}})
        start = b"".join(pickle.dumps(each, 2) for each in head)
        path.write_bytes(start + file.getvalue() + pickle.dumps(["0"], 2) + struct.pack("<q", 12) + numbers)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (("data.pkl", file.getvalue()), ("byteorder", b"little"), ("data/0", numbers)):
                archive.writestr(f"a/{name}", content)
            archive.writestr("a/version", "3\n")
    return path


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "claims",
    [
        (12, 0, (1 << 28,), (1,)),
        (1 << 28, 0, (1 << 28,), (1,)),
        (1 << 50, 0, (1 << 50,), (1,)),
        (12, 0, (1 << 40,), (0,)),
        (12, -1, (2,), (1,)),
        (12, 0, (2,), (-1,)),
        (12, 0, (2,), (1, 1)),
        ("12", 0, (2,), (1,)),
    ],
)
def test_claims_beyond_the_file_take_no_memory(here: Path, legacy: bool, claims: tuple[Any, ...]) -> None:
    found = read_pickled(claiming(here / "a.pth", legacy, 12, 0, (3, 4), (4, 1)))["state_dict"]["a"]
    assert found.tolist() == torch.arange(12.0).view(3, 4).tolist()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(claiming(here / "a.pth", legacy, *claims))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize("legacy", [False, True])
def test_attributes_cannot_hide_methods(here: Path, legacy: bool) -> None:
    state = OrderedDict(a=torch.ones(2))
    vars(state)["get"] = 1
    content = read_pickled(released.write(here / "a.pth", state, {}, legacy=legacy), SETTINGS)
    assert content["state_dict"].get("a") is not None


def test_a_memo_far_away_takes_no_memory(here: Path) -> None:
    whole = released.write(here / "a.pth", {"a": torch.ones(2)}, {}, legacy=True).read_bytes()
    head = whole[: whole.index(b"\x80\x02", 16)]
    (here / "a.pth").write_bytes(head + b"\x80\x02Nr\xff\xff\xff\x7f.")
    tracemalloc.start()
    refused(here / "a.pth")
    assert tracemalloc.get_traced_memory()[1] < MAX_PICKLE + (1 << 20), "the head, and little else"
    tracemalloc.stop()


@pytest.fixture(scope="module")
def legacy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("legacy") / "a.pth"
    return released.write(path, {"a": torch.arange(9.0)}, {"x": [1, 2.5, None]}, legacy=True)


@given(st.binary(max_size=300))
def test_any_bytes_are_data_or_one_line(legacy: Path, content: bytes) -> None:
    changed = legacy.with_name("changed.pth")
    changed.write_bytes(b"\x80\x02" + content)
    with contextlib.suppress(UsageError):
        read_pickled(changed, SETTINGS)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_is_data_or_one_line(legacy: Path, place: int, value: int) -> None:
    whole = bytearray(legacy.read_bytes())
    whole[place % len(whole)] = value
    changed = legacy.with_name("changed.pth")
    changed.write_bytes(whole)
    with contextlib.suppress(UsageError):
        read_pickled(changed, SETTINGS)


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


def without_pickle(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    if not name.endswith("data.pkl"):
        archive.writestr(name, content)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (packed, "is packed"),
        (without_data, "data/0"),
        (without_pickle, "data.pkl"),
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
        refused(path)


def test_a_pickle_larger_than_any_checkpoints(here: Path) -> None:
    path = released.write(here / "a.pth", {"a": torch.ones(2)}, {"notes": "x" * (9 << 20)})
    assert "longer than a checkpoint" in refused(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"hello", b"\x80\x02K\x01.\x80\x02K\x01.\x80\x02K\x01."])
def test_what_is_no_checkpoint(here: Path, content: bytes) -> None:
    (here / "a.pth").write_bytes(content)
    refused(here / "a.pth")


def test_no_file_and_a_folder(here: Path) -> None:
    assert "cannot be read" in refused(here / "none.pth")
    assert "expected a file, found a folder" in refused(here)
