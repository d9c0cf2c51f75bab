from __future__ import annotations

import gzip
import json
import math
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.synthetic import ground_truth, heading, r2r_entry, rxr_entry, write, write_envdrop, write_split
from vlnbench.data.benchmarks import Benchmark, get_benchmark
from vlnbench.data.datasets import SplitFiles
from vlnbench.data.episodes import load_split, parse_episodes, read_episodes, read_ground_truth
from vlnbench.errors import UsageError
from vlnbench.interfaces import Episode

R2R = get_benchmark("r2r-ce")
RXR = replace(get_benchmark("rxr-habitat"), splits={"val_unseen": None, "test_challenge": None})
PATH = Path("val_seen.json.gz")


def parse(*entries: Any, benchmark: Benchmark = R2R) -> list[Episode]:
    return list(parse_episodes(entries, PATH, benchmark))


def load(path: Path, benchmark: Benchmark = R2R) -> list[Episode]:
    return read_episodes(benchmark, SplitFiles((path,), (), ()))


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_field_arrives() -> None:
    (episode,) = parse(r2r_entry())
    assert episode.episode_id == "7"
    assert episode.trajectory_id == "3"
    assert episode.scene_id == "mp3d/synthetic/synthetic.glb"
    assert episode.start_position == (1.0, 0.0, 2.0)
    assert episode.start_rotation == tuple(heading(60.0))
    assert math.copysign(1.0, episode.start_rotation[0]) == -1.0
    assert episode.instruction == "Go  ahead. "
    assert episode.instruction_tokens == (3, 4, 0)
    assert episode.goals == ((4.0, 0.0, 5.0),)
    assert episode.goal_radius == 3.0
    assert episode.reference_path == ((1.0, 0.0, 2.0), (4.0, 0.0, 5.0))
    assert episode.geodesic_distance == 6.5
    assert (episode.language, episode.instruction_id) == ("en", None)


def test_the_agent_sees_no_goal_and_no_path() -> None:
    blind = parse(r2r_entry())[0].for_agent()
    assert (blind.goals, blind.reference_path, blind.geodesic_distance, blind.ground_truth) == ((), (), None, None)


def test_bert_indices_are_tokens_like_others() -> None:
    tokens = [101, 7632, *[0] * 78]
    entry = r2r_entry(instruction={"instruction_text": "Hi.", "instruction_tokens": tokens})
    assert parse(entry)[0].instruction_tokens == tuple(tokens)


def test_splits_without_public_goals() -> None:
    entry = r2r_entry()
    for field in ("info", "goals", "reference_path"):
        del entry[field]
    (episode,) = parse(entry)
    assert (episode.goals, episode.reference_path, episode.geodesic_distance) == ((), (), None)


def test_goals_of_only_some_episodes_are_refused(tmp_path: Path) -> None:
    entries = [r2r_entry(i, **({"goals": None} if i in (8, 9) else {})) for i in (7, 8, 9)]
    path = write(tmp_path / "a.json.gz", {"episodes": entries})
    expected = "a.json.gz: episode 8: field 'goals': missing in 2 of 3 episodes; expected in all or in none"
    assert expected in refusal(lambda: load(path))
    assert [episode.goals for episode in load(write(path, {"episodes": entries[1:]}))] == [(), ()]


def test_integers_are_coordinates_and_scenes_lose_the_habitat_prefix() -> None:
    (episode,) = parse(r2r_entry(start_position=[1, 0, 2], scene_id="data/scene_datasets/mp3d/a/a.glb"))
    assert [type(x) for x in episode.start_position] == [float, float, float]
    assert episode.scene_id == "mp3d/a/a.glb"


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e200, 10**400])
def test_goals_out_of_reach_have_infinite_distance(value: float) -> None:
    assert parse(r2r_entry(info={"geodesic_distance": value}))[0].geodesic_distance == math.inf


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("episode_id", None, "index 0: field 'episode_id'"),
        ("episode_id", 1.5, "index 0: field 'episode_id'"),
        ("episode_id", True, "index 0: field 'episode_id'"),
        ("episode_id", "../7", "index 0: field 'episode_id': expected an integer or a string of letters"),
        ("episode_id", "7\n8", "index 0: field 'episode_id'"),
        ("trajectory_id", None, "episode 7: field 'trajectory_id'"),
        ("scene_id", "/etc/passwd", "field 'scene_id': expected a path relative"),
        ("scene_id", "mp3d/../../x.glb", "field 'scene_id': expected a path relative"),
        ("scene_id", "mp3d/\0.glb", "field 'scene_id': expected a path relative"),
        ("scene_id", 5, "field 'scene_id'"),
        ("start_position", [1.0, 2.0], "field 'start_position': expected three finite numbers"),
        ("start_position", [1.0, float("nan"), 2.0], "field 'start_position': expected three finite numbers"),
        ("start_position", [10**400, 0.0, 2.0], "field 'start_position': expected three finite numbers"),
        ("start_position", [1e200, 0, -1e200], "episode 7: field 'start_position': expected three finite numbers"),
        ("start_position", [0, -1.1e6, 0], "finite numbers of at most 1,000,000 m, found [0, -1100000.0, 0]"),
        ("start_position", [True, 0.0, 2.0], "field 'start_position'"),
        ("start_position", [[1.0], 0.0, 2.0], "field 'start_position'"),
        ("start_rotation", [0.0, 0.0, 0.0, 2.0], "field 'start_rotation': expected a unit quaternion"),
        ("start_rotation", [1e300, 1e300, 0.0, 2.0], "field 'start_rotation': expected a unit quaternion"),
        ("start_rotation", [0.0, 0.0, 0.0, float("nan")], "field 'start_rotation': expected a unit quaternion"),
        ("start_rotation", "north", "field 'start_rotation'"),
        ("goals", [], "field 'goals'"),
        ("goals", [{"position": None}], "field 'goals.position'"),
        ("goals", [{"position": [0, 1e12, 0]}], "field 'goals.position': expected three finite numbers of at"),
        ("goals", [{"position": [0, 0, 0], "radius": -1}], "field 'goals.radius'"),
        ("goals", [{"position": [0, 0, 0], "radius": float("nan")}], "field 'goals.radius'"),
        ("instruction", "Go", "field 'instruction'"),
        ("instruction", {"instruction_text": " "}, "field 'instruction.instruction_text'"),
        ("instruction", {"instruction_text": "\ud800"}, "field 'instruction.instruction_text'"),
        ("instruction", {"instruction_text": "a", "instruction_tokens": [1.0]}, "instruction_tokens"),
        ("instruction", {"instruction_text": "a", "instruction_tokens": [3, -1]}, "instruction_tokens"),
        ("instruction", {"instruction_text": "a", "instruction_tokens": 3}, "instruction_tokens"),
        ("reference_path", [[0, 0]], "field 'reference_path'"),
        ("reference_path", 0, "field 'reference_path': expected a list of points"),
        ("reference_path", [[0, 0, float("inf")]], "field 'reference_path'"),
        ("info", 3, "field 'info': expected an object"),
        ("info", {"geodesic_distance": "far"}, "field 'info.geodesic_distance'"),
        ("info", {"geodesic_distance": -1.0}, "field 'info.geodesic_distance'"),
    ],
)
def test_a_bad_field_is_named(field: str, value: Any, message: str) -> None:
    text = refusal(lambda: parse(r2r_entry(**{field: value})))
    assert message in text
    assert "val_seen.json.gz" in text


def test_rxr_guide_fields_arrive() -> None:
    (episode,) = parse(rxr_entry(), benchmark=RXR)
    assert (episode.episode_id, episode.trajectory_id, episode.instruction_id) == ("1", "12", "40")
    assert (episode.language, episode.instruction) == ("en-US", "You are facing a wall.")
    assert episode.instruction_tokens == ()
    assert episode.geodesic_distance is None


def test_rxr_followers_along_one_path_share_a_trajectory() -> None:
    followers = replace(RXR, roles=("follower",))
    elsewhere = [[0.25, 3.9, -16.0], [9.0, 3.9, -9.0]]
    entries = [
        rxr_entry("60301", "follower"),
        rxr_entry("60302", "follower", "hi-IN"),
        rxr_entry("60303", "follower", reference_path=elsewhere),
    ]
    first, second, other = parse(*entries, benchmark=followers)
    assert first.trajectory_id == second.trajectory_id != other.trajectory_id


def test_rxr_languages_are_chosen() -> None:
    entries = [
        rxr_entry(str(i), language=language) for i, language in enumerate(("en-US", "hi-IN", "en-IN", "te-IN"))
    ]

    def chosen(*languages: str) -> list[str]:
        return [e.language for e in parse(*entries, benchmark=replace(RXR, languages=languages))]

    assert chosen() == ["en-US", "hi-IN", "en-IN", "te-IN"]
    assert chosen("en") == ["en-US", "en-IN"] == chosen("en-US", "en-IN")
    assert chosen("te-IN") == ["te-IN"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"language": None}, "episode 1: field 'instruction.language': expected a language code"),
        ({"language": "english"}, "episode 1: field 'instruction.language': expected a language code"),
        ({"instruction_id": None}, "episode 1: field 'instruction.instruction_id'"),
        ({"instruction_text": ""}, "episode 1: field 'instruction.instruction_text'"),
    ],
)
def test_a_bad_rxr_instruction_is_named(changes: dict[str, Any], message: str) -> None:
    entry = rxr_entry()
    entry["instruction"] |= changes
    assert message in refusal(lambda: parse(entry, benchmark=RXR))


def test_a_follower_among_guides_is_refused() -> None:
    text = refusal(lambda: parse(rxr_entry("60301", "follower"), benchmark=RXR))
    assert "episode 60301: field 'info.role': expected guide, found 'follower'" in text


@pytest.mark.parametrize(
    ("name", "languages", "missing"),
    [
        (RXR.name, ("en",), "en"),
        (RXR.name, ("hi-IN", "en"), ""),
        ("mine", ("hi-IN", "te"), ""),
        ("mine", ("hi", "en-ln"), "en-ln"),
        ("mine", ("EN-us", "te-IN", "HI"), "EN-us, HI"),
    ],
)
def test_languages_that_no_episode_has_are_refused(
    tmp_path: Path, name: str, languages: tuple[str, ...], missing: str
) -> None:
    entries = [rxr_entry(str(i), language=language) for i, language in enumerate(("hi-IN", "te-IN"))]
    path = write(tmp_path / "val_unseen_guide.json.gz", {"episodes": entries})
    benchmark = replace(RXR, name=name, languages=languages)
    if not missing:
        assert load(path, benchmark)
        return
    text = refusal(lambda: load(path, benchmark))
    assert text.startswith(f"{path}: field 'instruction.language': no episode in {missing}, ")
    assert f"benchmark {name}; there are hi-IN, te-IN: correct its languages" in text


def test_duplicate_ids_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json.gz", {"episodes": [r2r_entry(), r2r_entry(8), r2r_entry()]})
    assert "a.json.gz: episode 7: field 'episode_id' appears twice" in refusal(lambda: load(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "expected {, found '['"),
        (None, "expected {, found 'n'"),
        ("x", "expected {, found '\"'"),
        ({}, "field 'episodes' holds no episode"),
        ({"episodes": 3}, "expected [, found '3'"),
        ({"episodes": []}, "field 'episodes' holds no episode"),
        ({"episodes": [4]}, "episode at index 0: field '(whole entry)': expected an object"),
        (b"", "expected {, found the end of the file"),
        (b"{", "found the end of the file"),
        (b'{"episodes": [' + json.dumps(r2r_entry()).encode() + b"2]}", "expected , or ], found '2' at"),
        (b'{"episodes": [tru', "Expecting value at character 14"),
        (b'{"episodes": []} {', "more text behind the end"),
        (b'{"episodes": [], "episodes": []}', "'episodes' appears twice"),
        (b'{"a": ' + b"[" * 100000, "recursion"),
        (b'{"a": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (b'{"\xff": 1}', "can't decode byte"),
    ],
)
def test_wrong_documents_are_refused(content: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "val_seen.json", content)
    text = refusal(lambda: load(path))
    assert message in text
    assert "val_seen.json" in text


def test_files_may_have_members_around_the_episodes(tmp_path: Path) -> None:
    content = (
        b'\xef\xbb\xbf {"a" : [1, {"episodes": 2}],\n"episodes":['
        + json.dumps(r2r_entry()).encode()
        + b'] , "b":7}\n'
    )
    assert load(write(tmp_path / "a.json", content)) == parse(r2r_entry())


def test_values_longer_than_what_is_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [r2r_entry(i) for i in range(40)]
    path = write(tmp_path / "a.json.gz", {"instruction_vocab": {"word_list": ["a"] * 99}, "episodes": entries})
    for size in (1, 2, 7, 100):
        monkeypatch.setattr("vlnbench.util.durable.json_stream.CHUNK", size)
        assert load(path) == parse(*entries)


def test_gzip_is_recognized_by_content(tmp_path: Path) -> None:
    content = json.dumps({"episodes": [r2r_entry()]}).encode()
    plain = load(write(tmp_path / "plain.json.gz", content))
    assert plain == load(write(tmp_path / "packed.json", gzip.compress(content))) == parse(r2r_entry())


@pytest.mark.parametrize("packed", [True, False])
def test_files_cut_off_anywhere_are_refused(tmp_path: Path, packed: bool) -> None:
    content = json.dumps({"episodes": [r2r_entry()], "instruction_vocab": {}}).encode()
    content = gzip.compress(content) if packed else content
    for end in range(0, len(content), 7):
        path = write(tmp_path / "a.json", content[:end])
        text = refusal(lambda path=path: load(path))
        assert "a.json: not a readable (gzipped) JSON file" in text


def test_a_folder_or_an_unreadable_file(tmp_path: Path) -> None:
    assert "expected a file, found a folder" in refusal(lambda: load(tmp_path))


def test_ground_truth_of_exactly_the_wanted_episodes(tmp_path: Path) -> None:
    entries = [r2r_entry(7), r2r_entry(8)]
    truth = {**ground_truth(entries), "9": "not looked at"}
    gt = write(tmp_path / "gt.json.gz", truth)
    first, second = read_ground_truth(parse(*entries), SplitFiles((PATH,), (gt,), ()))
    assert first.ground_truth == second.ground_truth
    assert first.ground_truth is not None
    assert first.ground_truth.locations == ((1.0, 0.0, 2.0), (4.0, 0.0, 5.0))
    assert first.ground_truth.actions == (1, 0)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (None, "episode 7: field '(whole entry)'"),
        ({"locations": [], "actions": [0]}, "episode 7: field 'locations'"),
        ({"locations": [[0, 0, 0], [0, 0]], "actions": [0]}, "episode 7: field 'locations'"),
        ({"locations": [[0, 0, 0], [0, 0, 0, 0], [0, 0]], "actions": [0]}, "episode 7: field 'locations'"),
        ({"locations": [[0, float("nan"), 0]], "actions": [0]}, "episode 7: field 'locations'"),
        (
            {"locations": [[0, 0, 0], [-1e200, 0, 0]], "actions": [0]},
            "episode 7: field 'locations': expected points of three finite numbers of at most 1,000,000 m, "
            "found [-1e+200, 0, 0]",
        ),
        ({"locations": [[0, 0, 0]], "actions": [9]}, "episode 7: field 'actions'"),
        ({"locations": [[0, 0, 0]], "actions": [True]}, "episode 7: field 'actions'"),
        ({"locations": [[0, 0, 0]], "actions": []}, "episode 7: field 'actions'"),
        ({"locations": [[0, 0, 0]], "actions": "0"}, "episode 7: field 'actions'"),
        ({"locations": [[0, 0, 0]], "actions": [[0]]}, "episode 7: field 'actions'"),
    ],
)
def test_bad_ground_truth_is_named(entry: Any, message: str, tmp_path: Path) -> None:
    gt = write(tmp_path / "gt.json.gz", {"7": entry})
    text = refusal(lambda: read_ground_truth(parse(r2r_entry()), SplitFiles((PATH,), (gt,), ())))
    assert f"gt.json.gz: {message}" in text


def test_missing_ground_truth_entries_are_counted(tmp_path: Path) -> None:
    gt = write(tmp_path / "gt.json.gz", ground_truth([r2r_entry(7)]))
    episodes = parse(r2r_entry(7), r2r_entry(8), r2r_entry(9))
    text = refusal(lambda: read_ground_truth(episodes, SplitFiles((PATH,), (gt,), ())))
    assert "gt.json.gz: episode 8: no entry (2 of 3 have none)" in text


def test_coordinates_go_up_to_the_limit() -> None:
    assert parse(r2r_entry(start_position=[-1e6, 1_000_000, 0.0]))[0].start_position == (-1e6, 1e6, 0.0)


@pytest.mark.slow
def test_memory_for_a_split_as_large_as_envdrop(tmp_path: Path) -> None:
    """At EnvDrop's 146,304 episodes the limit is 1.5 GB; decoding whole files at once would take twice that."""
    count = 1500
    path = write_envdrop(tmp_path, count)
    files = SplitFiles((path,), (tmp_path / "envdrop_gt.json.gz",), ())
    tracemalloc.start()
    episodes = read_ground_truth(read_episodes(R2R, files), files)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(episodes) == count
    buffers = 8e6  # what is read and decoded at a time; does not grow with the file
    assert (peak - buffers) / count * 146304 < 1.4e9


# The published files.


@pytest.fixture(scope="module")
def published(shared: Path) -> dict[str, Sequence[Episode]]:
    return {
        split: load_split(R2R, split, shared / "data").episodes
        for split in ("train", "val_seen", "val_unseen", "test")
    }


@pytest.mark.slow
def test_published_counts_and_trajectories(published: dict[str, Sequence[Episode]]) -> None:
    def counts(value: Callable[[Episode], str]) -> dict[str, int]:
        return {split: len({value(episode) for episode in episodes}) for split, episodes in published.items()}

    assert counts(lambda e: e.episode_id) == {"train": 10819, "val_seen": 778, "val_unseen": 1839, "test": 3408}
    assert counts(lambda e: e.trajectory_id) == {"train": 3603, "val_seen": 259, "val_unseen": 613, "test": 1136}
    assert counts(lambda e: e.scene_id) == {"train": 61, "val_seen": 53, "val_unseen": 11, "test": 18}
    assert all(not episode.goals for episode in published["test"])


def test_published_reference_episode(published: dict[str, Sequence[Episode]]) -> None:
    first, second = published["val_unseen"][:2]
    assert (first.episode_id, first.trajectory_id, second.trajectory_id) == ("1", "15", "15")
    assert first.scene_id == "mp3d/zsNo4HB9uLZ/zsNo4HB9uLZ.glb"
    assert first.start_position == pytest.approx((15.0686, 0.171628, -4.48482), abs=1e-6)
    assert first.start_rotation == pytest.approx((0.0, 0.5, 0.0, 0.866025), abs=1e-6)
    assert first.geodesic_distance == pytest.approx(7.960824, abs=1e-6)
    assert first.goals[0] == pytest.approx((13.0464, 0.171628, 1.87397), abs=1e-6)
    assert (len(first.reference_path), first.reference_path[-1]) == (6, first.goals[0])
    assert first.instruction_tokens[:5] == (816, 2202, 246, 103, 2300)
    assert len(first.instruction_tokens) == 200
    truth = first.ground_truth
    assert truth is not None
    assert (len(truth.locations), len(truth.actions)) == (33, 49)
    assert (truth.actions[:8], truth.actions[-2:]) == ((2, 2, 1, 2, 1, 1, 1, 3), (1, 0))


@pytest.mark.parametrize(
    ("split", "actions", "forwards"), [("val_unseen", 57.35, 36.04), ("val_seen", 59.33, 38.76)]
)
def test_published_ground_truth(
    published: dict[str, Sequence[Episode]], split: str, actions: float, forwards: float
) -> None:
    lengths, steps = [], []
    for episode in published[split]:
        truth = episode.ground_truth
        assert truth is not None
        assert truth.locations[0] == episode.start_position == episode.reference_path[0]
        assert truth.actions.index(0) == len(truth.actions) - 1
        assert len(truth.locations) == truth.actions.count(1) + 1
        assert math.dist(truth.locations[-1], episode.goals[0]) <= 0.51
        lengths.append(len(truth.actions))
        steps.append(truth.actions.count(1))
    assert np.mean(lengths) == pytest.approx(actions, abs=0.005)
    assert np.mean(steps) == pytest.approx(forwards, abs=0.005)


def test_the_hash_covers_the_ground_truth(tmp_path: Path) -> None:
    folder = tmp_path / "datasets" / "r2r" / "val_seen"
    write_split(folder, "val_seen", [r2r_entry()])
    before = load_split(R2R, "val_seen", tmp_path, allow_partial=True)
    write(folder / "val_seen_gt.json.gz", {**ground_truth([r2r_entry()]), "9": {}})
    after = load_split(R2R, "val_seen", tmp_path, allow_partial=True)
    assert before.episodes == after.episodes
    assert before.sha256 != after.sha256
