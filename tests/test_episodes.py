from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vlnbench.benchmarks import get_benchmark
from vlnbench.episodes import attach_ground_truth, load_split, parse_r2r
from vlnbench.errors import UsageError
from vlnbench.interfaces import Episode

R2R = get_benchmark("r2r-ce")
PATH = Path("val_seen.json.gz")


def document() -> dict[str, Any]:
    episode = {
        "episode_id": 7,
        "trajectory_id": 3,
        "scene_id": "mp3d/abc/abc.glb",
        "start_position": [1.0, 0.0, 2.0],
        "start_rotation": [-0.0, 0.5, 0.0, 0.8660254],
        "info": {"geodesic_distance": 6.5},
        "goals": [{"position": [4.0, 0.0, 5.0], "radius": 3.0}],
        "instruction": {"instruction_text": "Go  ahead. ", "instruction_tokens": [3, 4, 0]},
        "reference_path": [[1.0, 0.0, 2.0], [4.0, 0.0, 5.0]],
    }
    return {"episodes": [episode, {**episode, "episode_id": 8}], "instruction_vocab": {}}


def write(root: Path, split: str, content: Any, name: str | None = None) -> Path:
    folder = root / "datasets" / "R2R_VLNCE_v1-3_preprocessed" / split
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (name or f"{split}.json.gz")
    data = content if isinstance(content, bytes) else gzip.compress(json.dumps(content).encode())
    path.write_bytes(data)
    return path


def assert_loads_or_refuses(load: Callable[[], Sequence[Episode]]) -> None:
    message = ""
    try:
        assert len(load()) == 2
    except UsageError as error:
        message = str(error)
    assert "\n" not in message


def test_every_field_arrives() -> None:
    episode = parse_r2r(document(), PATH)[0]
    assert episode.episode_id == "7"
    assert episode.trajectory_id == "3"
    assert episode.scene_id == "mp3d/abc/abc.glb"
    assert episode.start_position == (1.0, 0.0, 2.0)
    assert episode.start_rotation == (-0.0, 0.5, 0.0, 0.8660254)
    assert episode.instruction == "Go  ahead. "
    assert episode.instruction_tokens == (3, 4, 0)
    assert episode.goals == ((4.0, 0.0, 5.0),)
    assert episode.reference_path == ((1.0, 0.0, 2.0), (4.0, 0.0, 5.0))
    assert episode.geodesic_distance == 6.5


def test_the_agent_sees_no_goal_and_no_path() -> None:
    blind = parse_r2r(document(), PATH)[0].for_agent()
    assert (blind.goals, blind.reference_path, blind.geodesic_distance, blind.ground_truth) == ((), (), None, None)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("episode_id", None, "index 0: field 'episode_id'"),
        ("episode_id", 1.5, "index 0: field 'episode_id'"),
        ("scene_id", "/etc/passwd", "field 'scene_id': expected a path relative"),
        ("scene_id", "mp3d/../../x.glb", "field 'scene_id': expected a path relative"),
        ("scene_id", 5, "field 'scene_id'"),
        ("start_position", [1.0, 2.0], "field 'start_position': expected three finite numbers"),
        ("start_position", [1.0, float("nan"), 2.0], "field 'start_position': expected three finite numbers"),
        ("start_position", [True, 0.0, 2.0], "field 'start_position'"),
        ("start_rotation", [0.0, 0.0, 0.0, 2.0], "field 'start_rotation': expected a unit quaternion"),
        ("start_rotation", "north", "field 'start_rotation'"),
        ("goals", [], "field 'goals'"),
        ("goals", [{"position": None}], "field 'goals.position'"),
        ("goals", [{"position": [0, 0, 0], "radius": -1}], "field 'goals.radius'"),
        ("instruction", "Go", "field 'instruction'"),
        ("instruction", {"instruction_text": " "}, "field 'instruction.instruction_text'"),
        ("reference_path", [[0, 0]], "field 'reference_path'"),
        ("info", {"geodesic_distance": "far"}, "field 'info.geodesic_distance'"),
    ],
)
def test_a_bad_field_is_named(field: str, value: Any, message: str) -> None:
    broken = document()
    broken["episodes"][0][field] = value
    with pytest.raises(UsageError) as caught:
        parse_r2r(broken, PATH)
    text = str(caught.value)
    assert message in text
    assert "val_seen.json.gz" in text
    assert "\n" not in text


def test_duplicate_ids_are_refused() -> None:
    broken = document()
    broken["episodes"][1]["episode_id"] = 7
    with pytest.raises(UsageError, match="episode 7: field 'episode_id' appears twice"):
        parse_r2r(broken, PATH)


@pytest.mark.parametrize("content", [[], {}, {"episodes": 3}, {"episodes": []}, {"episodes": [4]}, None, "x"])
def test_wrong_documents_are_refused(content: Any) -> None:
    with pytest.raises(UsageError, match="val_seen"):
        parse_r2r(content, PATH)


def test_gzip_is_recognised_by_content(tmp_path: Path) -> None:
    write(tmp_path, "val_seen", json.dumps(document()).encode())
    plain = load_split(R2R, "val_seen", tmp_path)
    write(tmp_path, "val_seen", document())
    packed = load_split(R2R, "val_seen", tmp_path)
    assert plain.episodes == packed.episodes
    assert plain.sha256 != packed.sha256


def test_the_hash_covers_the_ground_truth(tmp_path: Path) -> None:
    write(tmp_path, "val_seen", document())
    before = load_split(R2R, "val_seen", tmp_path)
    truth = {str(i): {"locations": [[1.0, 0.0, 2.0]], "actions": [0], "forward_steps": 0} for i in (7, 8)}
    write(tmp_path, "val_seen", truth, "val_seen_gt.json.gz")
    after = load_split(R2R, "val_seen", tmp_path)
    assert after.episodes[0].ground_truth is not None
    assert before.sha256 != after.sha256


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (None, "episode 7: field '\\(whole entry\\)'"),
        ({"locations": [], "actions": [0]}, "episode 7: field 'locations'"),
        ({"locations": [[0, 0, 0]], "actions": [9]}, "episode 7: field 'actions'"),
        ({"locations": [[0, 0, 0]], "actions": "0"}, "episode 7: field 'actions'"),
    ],
)
def test_bad_ground_truth_is_named(entry: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attach_ground_truth(parse_r2r(document(), PATH), {"7": entry}, Path("gt.json.gz"))


def test_missing_split_files_and_unknown_splits(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no episode file for r2r-ce val_seen: expected .*val_seen\.json\.gz"):
        load_split(R2R, "val_seen", tmp_path)
    with pytest.raises(UsageError, match="did you mean 'val_seen'"):
        load_split(R2R, "val_sen", tmp_path)


def test_truncated_gzip_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, "val_seen", document())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError, match="not a readable"):
        load_split(R2R, "val_seen", tmp_path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=6), st.booleans())
def test_mutated_files_load_or_are_refused_in_one_line(
    tmp_path: Path, position: int, patch: bytes, packed: bool
) -> None:
    content = bytearray(json.dumps(document()).encode())
    if packed:
        content = bytearray(gzip.compress(bytes(content), mtime=0))
    at = position % len(content)
    content[at : at + len(patch)] = patch
    write(tmp_path, "val_seen", bytes(content))
    assert_loads_or_refuses(lambda: load_split(R2R, "val_seen", tmp_path).episodes)


json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(document()["episodes"][0])), json_value)
def test_any_json_in_any_field_loads_or_is_refused(field: str, value: Any) -> None:
    changed = copy.deepcopy(document())
    changed["episodes"][0][field] = value
    assert_loads_or_refuses(lambda: parse_r2r(changed, PATH))


def test_real_files(shared: Path) -> None:
    counts = {"train": 10819, "val_seen": 778, "val_unseen": 1839, "test": 3408}
    sets = {split: load_split(R2R, split, shared / "data") for split in counts}
    assert {split: len(found.episodes) for split, found in sets.items()} == counts
    first = sets["val_unseen"].episodes[0]
    assert (first.episode_id, first.trajectory_id, first.scene_id) == (
        "1",
        "15",
        "mp3d/zsNo4HB9uLZ/zsNo4HB9uLZ.glb",
    )
    assert first.start_position == pytest.approx((15.0686, 0.171628, -4.48482), abs=1e-4)
    assert first.geodesic_distance == pytest.approx(7.960824, abs=1e-6)
    assert first.instruction_tokens[:5] == (816, 2202, 246, 103, 2300)
    assert first.ground_truth is not None
    assert (len(first.ground_truth.locations), len(first.ground_truth.actions)) == (33, 49)
    assert all(not episode.goals for episode in sets["test"].episodes)
