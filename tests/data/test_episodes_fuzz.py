"""Open-ended input: every file loads or is refused in one line that names it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.synthetic import ground_truth, r2r_entry, rxr_entry, write
from vlnbench.data.benchmarks import Benchmark, get_benchmark
from vlnbench.data.datasets import SplitFiles
from vlnbench.data.episodes import parse_episodes, read_episodes, read_ground_truth
from vlnbench.errors import UsageError
from vlnbench.interfaces import Episode

R2R = get_benchmark("r2r-ce")
RXR = get_benchmark("rxr-habitat")
PATH = Path("val_seen.json.gz")


def parse(*entries: Any, benchmark: Benchmark = R2R) -> list[Episode]:
    return list(parse_episodes(entries, PATH, benchmark))


def assert_loads_or_refuses(action: Callable[[], Sequence[Episode]], count: int) -> None:
    message = "val_seen"
    try:
        assert len(action()) == count
    except UsageError as error:
        message = str(error)
    assert "val_seen" in message
    assert "\n" not in message
    message.encode()  # can be printed


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=6), st.booleans(), st.booleans(), st.booleans())
def test_mutated_files_load_or_are_refused(
    tmp_path: Path, position: int, patch: bytes, packed: bool, rxr: bool, in_truth: bool
) -> None:
    stem, benchmark = ("val_seen_guide", RXR) if rxr else ("val_seen", R2R)
    entries = [rxr_entry("7"), rxr_entry("8")] if rxr else [r2r_entry(7), r2r_entry(8)]
    contents = [json.dumps({"episodes": entries}).encode(), json.dumps(ground_truth(entries)).encode()]
    contents = [gzip.compress(content, mtime=0) if packed else content for content in contents]
    changed = bytearray(contents[in_truth])
    at = position % len(changed)
    changed[at : at + len(patch)] = patch
    contents[in_truth] = bytes(changed)
    files = SplitFiles(
        (write(tmp_path / f"{stem}.json.gz", contents[0]),),
        (write(tmp_path / f"{stem}_gt.json.gz", contents[1]),),
        (),
    )
    assert_loads_or_refuses(lambda: read_ground_truth(read_episodes(benchmark, files), files), 2)


json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
numbers = st.lists(st.floats() | st.integers() | st.just(10**400), min_size=3, max_size=4)
field_value = json_value | numbers | st.lists(numbers, max_size=3)


def inner_fields(entry: dict[str, Any]) -> list[tuple[str, ...]]:
    nested = [(key, inner) for key, value in entry.items() if isinstance(value, dict) for inner in value]
    return sorted([(key,) for key in entry] + nested)


def changed(entry: dict[str, Any], field: tuple[str, ...], value: Any) -> dict[str, Any]:
    if len(field) == 1:
        return {**entry, field[0]: value}
    return {**entry, field[0]: {**entry[field[0]], field[1]: value}}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(inner_fields(r2r_entry())), field_value)
def test_any_json_in_any_r2r_field(field: tuple[str, ...], value: Any) -> None:
    entry = changed(r2r_entry(), field, value)
    assert_loads_or_refuses(lambda: parse(entry, r2r_entry(8)), 2)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(inner_fields(rxr_entry())), field_value)
def test_any_json_in_any_rxr_field(field: tuple[str, ...], value: Any) -> None:
    entry = changed(rxr_entry(), field, value)
    assert_loads_or_refuses(lambda: parse(entry, rxr_entry("8"), benchmark=RXR), 2)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(["locations", "actions", "forward_steps"]), field_value)
def test_any_json_in_any_ground_truth_field(tmp_path: Path, field: str, value: Any) -> None:
    truth = ground_truth([r2r_entry()])
    truth["7"][field] = value
    gt = write(tmp_path / "val_seen_gt.json.gz", truth)
    assert_loads_or_refuses(lambda: read_ground_truth(parse(r2r_entry()), SplitFiles((PATH,), (gt,), ())), 1)
