from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.embedded.navmesh.motion import advance
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.houses.edition import HOUSES
from envs.houses.files import dataset
from envs.houses.files.dataset import generate
from envs.houses.files.manifest import generated, house_names, is_complete
from envs.houses.files.statistics import R2R_CE, clause_count, real_turns
from envs.houses.options import RANGES, Houses2Config, HousesConfig
from tests.envs.houses.conftest import Generated, read_json
from vlnbench.errors import UsageError

SPLITS, MANIFEST, VERSION = HOUSES.drawn, HOUSES.manifest, HOUSES.version


def tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def keys(value: Any) -> Any:
    """The shape of a record: keys of objects, the shape of the first element of lists, else the type."""
    if isinstance(value, dict):
        return {key: keys(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [keys(value[0])] if value else []
    return type(value)


def test_episodes_have_the_schema_of_r2r_ce(tiny: Generated, shared: Path) -> None:
    folder = shared / "data/datasets/R2R_VLNCE_v1-3_preprocessed/val_seen"
    real, ours = read_json(folder / "val_seen.json.gz"), tiny.split("val_seen")
    assert list(ours) == list(real)
    for episode in ours["episodes"]:
        assert keys(episode) == keys(real["episodes"][0])
        assert list(episode) == list(real["episodes"][0])
    assert {k: type(v) for k, v in ours["instruction_vocab"].items()} == {
        k: type(v) for k, v in real["instruction_vocab"].items()
    }
    real_truth = next(iter(read_json(folder / "val_seen_gt.json.gz").values()))
    assert all(keys(entry) == keys(real_truth) for entry in tiny.truth("val_seen").values())


def test_vocabulary_is_one_for_all_splits(tiny: Generated) -> None:
    vocabs = [tiny.split(split)["instruction_vocab"] for split in SPLITS]
    assert vocabs[0] == vocabs[1] == vocabs[2]
    words = vocabs[0]["word_list"]
    assert vocabs[0]["itos"] == words
    assert vocabs[0]["stoi"] == vocabs[0]["word2idx_dict"] == {word: i for i, word in enumerate(words)}
    assert (vocabs[0]["num_vocab"], vocabs[0]["UNK_INDEX"], vocabs[0]["PAD_INDEX"]) == (len(words), 1, 0)


def test_counts_are_as_configured(tiny: Generated) -> None:
    ids = set()
    for split in SPLITS:
        episodes = tiny.split(split)["episodes"]
        wanted = getattr(tiny.config, f"{split}_episodes")
        assert [e["episode_id"] for e in episodes] == list(range(1, wanted + 1))
        assert tiny.manifest.counts[split]["episodes"] == wanted
        siblings: dict[int, list[Any]] = {}
        for episode in episodes:
            siblings.setdefault(episode["trajectory_id"], []).append(episode)
        assert tiny.manifest.counts[split]["trajectories"] == len(siblings) >= math.ceil(wanted / 3)
        assert not ids & set(siblings)
        ids |= set(siblings)
        for group in siblings.values():
            assert len({e["instruction"]["instruction_text"] for e in group}) == len(group) <= 3
            assert all(e["start_position"] == group[0]["start_position"] for e in group)
            assert all(e["reference_path"] == group[0]["reference_path"] for e in group)


def test_splits_do_not_overlap(tiny: Generated) -> None:
    scenes = {split: {e["scene_id"] for e in tiny.split(split)["episodes"]} for split in SPLITS}
    assert scenes["train"] == scenes["val_seen"]
    assert not scenes["train"] & scenes["val_unseen"]
    names = house_names(tiny.config)
    assert scenes["train"] == {f"houses/{name}/{name}.glb" for name in names["train"]}
    assert scenes["val_unseen"] == {f"houses/{name}/{name}.glb" for name in names["unseen"]}
    tasks = [
        {(e["scene_id"], *e["start_position"], *e["goals"][0]["position"]) for e in tiny.split(split)["episodes"]}
        for split in SPLITS
    ]
    assert not tasks[0] & tasks[1]


def test_starts_goals_and_paths_fit_the_navmesh(tiny: Generated) -> None:
    for split in SPLITS:
        for episode in tiny.split(split)["episodes"]:
            path = tiny.root / "scene_datasets" / episode["scene_id"]
            pathfinder = PathFinder.load(path.with_suffix(".navmesh"))
            start, (goal,) = episode["start_position"], episode["goals"]
            distance = pathfinder.geodesic_distance(start, goal["position"])
            assert distance == episode["info"]["geodesic_distance"]
            assert 4.0 <= distance <= 20.0
            assert goal["radius"] == 3.0
            x, y, z, w = episode["start_rotation"]
            assert x == z == 0.0
            heading = 2 * math.degrees(math.atan2(y, w)) / 30.0
            assert heading == pytest.approx(round(heading), abs=1e-9)
            reference = episode["reference_path"]
            assert 4 <= len(reference) <= 7
            assert (reference[0], reference[-1]) == (start, goal["position"])
            assert all(pathfinder.is_navigable(point) for point in reference)
            legs = [math.dist(a, b) for a, b in pairwise(reference)]
            assert sum(legs) <= 1.02 * distance + 0.05
            assert sum(legs) >= 0.75 * distance


def test_ground_truth_walks_to_the_goal(tiny: Generated) -> None:
    ratios = []
    for split in SPLITS:
        truth = tiny.truth(split)
        episodes = tiny.split(split)["episodes"]
        assert list(truth) == [str(e["episode_id"]) for e in episodes]
        for episode in episodes:
            entry = truth[str(episode["episode_id"])]
            actions, locations = entry["actions"], entry["locations"]
            assert set(actions) <= {0, 1, 2, 3}
            assert actions.index(0) == len(actions) - 1
            assert entry["forward_steps"] == actions.count(1) == len(locations) - 1
            assert locations[0] == episode["start_position"]
            goal = episode["goals"][0]["position"]
            assert math.dist(locations[-1], goal) <= 0.5
            steps = [math.dist(a, b) for a, b in pairwise(locations)]
            assert max(steps) <= 0.30  # 0.25 m in plan, up a ramp of 29 degrees
            assert len(actions) < 300
            ratios.append(sum(steps) / episode["info"]["geodesic_distance"])
    assert 0.93 < np.median(ratios) < 1.05
    assert max(ratios) < 1.3


def test_ground_truth_actions_lead_through_the_locations(tiny: Generated) -> None:
    truth = tiny.truth("val_unseen")
    for episode in tiny.split("val_unseen")["episodes"]:
        path = tiny.root / "scene_datasets" / episode["scene_id"]
        pathfinder = PathFinder.load(path.with_suffix(".navmesh"))
        position, rotation = episode["start_position"], episode["start_rotation"]
        entry = truth[str(episode["episode_id"])]
        reached = [position]
        for action in entry["actions"][:-1]:
            position, rotation, _ = advance(pathfinder, position, rotation, action, 0.25, 15.0, sliding=True)
            if action == 1:
                reached.append(position.tolist())
        assert reached == entry["locations"]


def test_same_config_same_bytes(tiny: Generated, tmp_path: Path) -> None:
    begin = time.process_time()
    generate(tmp_path, tiny.config)
    seconds = time.process_time() - begin
    assert tree(tmp_path) == tree(tiny.root)
    assert seconds / 3 < 3.5, "70 houses have to be generated within a few minutes"


def test_finished_houses_are_kept(tiny: Generated) -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny.root.rglob("*")}
    assert generate(tiny.root, tiny.config) == tiny.manifest
    assert {path: path.stat().st_mtime_ns for path in tiny.root.rglob("*")} == before


@pytest.mark.slow
def test_splits_are_made_when_they_are_asked_for_in_any_order(tiny: Generated, tmp_path: Path) -> None:
    first = generate(tmp_path, tiny.config, splits=("val_unseen",))
    assert list(first.counts) == ["val_unseen"]
    assert generated(tmp_path, HOUSES) == (VERSION, ("val_unseen",))
    assert not any("train" in name or "val_seen" in name for name in tree(tmp_path))
    assert not is_complete(tmp_path, tiny.config)
    stamp = (tmp_path / MANIFEST).stat().st_mtime_ns
    assert generate(tmp_path, tiny.config, splits=("val_unseen",)) == first
    assert (tmp_path / MANIFEST).stat().st_mtime_ns == stamp
    assert generate(tmp_path, tiny.config, splits=("val_seen",)) == tiny.manifest  # train has the same houses
    assert tree(tmp_path) == tree(tiny.root)


@pytest.mark.slow
def test_processes_make_the_same_bytes(tiny: Generated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "at_once", lambda houses: 2)
    generate(tmp_path, tiny.config)
    assert tree(tmp_path) == tree(tiny.root)


def test_statistics_are_those_of_the_files(tiny: Generated) -> None:
    for split in SPLITS:
        episodes, truth = tiny.split(split)["episodes"], tiny.truth(split)
        means = tiny.manifest.statistics[split]
        words = [len(e["instruction"]["instruction_text"].split()) for e in episodes]
        actions = [len(entry["actions"]) for entry in truth.values()]
        assert means["words"] == pytest.approx(np.mean(words), abs=0.0501)
        assert means["actions"] == pytest.approx(np.mean(actions), abs=0.0501)
        assert means["geodesic distance (m)"] == pytest.approx(
            np.mean([e["info"]["geodesic_distance"] for e in episodes]), abs=0.0501
        )


def test_figures_of_r2r_ce_are_those_of_its_files(shared: Path) -> None:
    for split, expected in R2R_CE.items():
        folder = shared / "data/datasets/R2R_VLNCE_v1-3_preprocessed" / split
        episodes = read_json(folder / f"{split}.json.gz")["episodes"]
        truth = read_json(folder / f"{split}_gt.json.gz")
        actions = [truth[str(e["episode_id"])]["actions"] for e in episodes]
        texts = [e["instruction"]["instruction_text"] for e in episodes]
        found = {
            "actions": np.mean([len(a) for a in actions]),
            "forward": np.mean([a.count(1) for a in actions]),
            "turn actions": np.mean([a.count(2) + a.count(3) for a in actions]),
            "turns of 45 degrees or more": np.mean([real_turns(a) for a in actions]),
            "words": np.mean([len(text.split()) for text in texts]),
            "clauses": np.mean([clause_count(text.lower()) for text in texts]),
            "geodesic distance (m)": np.mean([e["info"]["geodesic_distance"] for e in episodes]),
        }
        for name, value in found.items():
            assert expected[name] == pytest.approx(value, abs=0.0501), name


def test_other_seed_other_houses(tiny: Generated, tmp_path: Path) -> None:
    config = HousesConfig(
        seed=4, train_houses=1, val_unseen_houses=1, train_episodes=3, val_seen_episodes=3, val_unseen_episodes=3
    )
    generate(tmp_path, config)
    hashes = {f["sha256"] for name, f in tiny.manifest.files.items() if "scene_datasets" in name}
    assert not hashes & {f["sha256"] for f in json.loads((tmp_path / MANIFEST).read_text())["files"].values()}


@pytest.mark.slow
def test_interrupted_generation_is_resumed(tiny: Generated, tmp_path: Path) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        assert stage in ("houses", "writing episodes")
        assert total == 3
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path, tiny.config, stop)
    assert not is_complete(tmp_path, tiny.config)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.glb")}
    assert len(kept) == 2
    generate(tmp_path, tiny.config)
    assert all(path.stat().st_mtime_ns == before for path, before in kept.items())
    assert tree(tmp_path) == tree(tiny.root)
    assert is_complete(tmp_path, tiny.config)


def test_complete_means_this_config_and_all_files(tiny: Generated, tmp_path: Path) -> None:
    assert is_complete(tiny.root, tiny.config)
    assert not is_complete(tiny.root, replace(tiny.config, seed=5))
    assert not is_complete(tmp_path, tiny.config)
    manifest = json.loads((tiny.root / MANIFEST).read_text())
    assert manifest["config"] == asdict(tiny.config)
    assert manifest["version"] == VERSION == "houses-3"
    assert len(manifest["files"]) == 2 * 3 + 6 * len(SPLITS)
    (tmp_path / MANIFEST).parent.mkdir(parents=True)
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    assert not is_complete(tmp_path, tiny.config)
    (tmp_path / MANIFEST).write_text("{")
    assert not is_complete(tmp_path, tiny.config)


@pytest.mark.parametrize(
    "bad",
    [
        {"train_houses": 0},
        {"seed": -1},
        {"val_seen_episodes": 2.5},
        {"train_episodes": True},
        {"val_unseen_houses": "3"},
        {"rooms_min": 9, "rooms_max": 8},
        {"storeys_share": 1.5},
        {"storeys_share": float("nan")},
        {"clause_dropout": "0.1"},
        {"distractors": 0.5},
        {"start_heading": "up"},
    ],
)
def test_bad_config_is_one_line(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(bad))) as error:
        HousesConfig(**bad)
    assert "\n" not in str(error.value)


@given(st.sampled_from(sorted(RANGES)), st.integers() | st.floats() | st.text() | st.none())
def test_options_are_in_range_or_refused(name: str, value: Any) -> None:
    low, high = RANGES[name]
    kind = Houses2Config if "_far_" in name else HousesConfig
    kinds = (int,) if isinstance(low, int) else (int, float)
    if type(value) in kinds and low <= value <= high:
        assert getattr(kind(**{name: value}), name) == value
    else:
        with pytest.raises(UsageError, match=name) as error:
            kind(**{name: value})
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("heading", ["along", "away"])
def test_start_heading(heading: Any, tmp_path: Path) -> None:
    config = HousesConfig(
        train_houses=1,
        val_unseen_houses=1,
        train_episodes=6,
        val_seen_episodes=1,
        val_unseen_episodes=1,
        start_heading=heading,
    )
    generate(tmp_path, config)
    for entry in read_json(tmp_path / "datasets/houses_r2r/train/train_gt.json.gz").values():
        first = entry["actions"].index(1)
        assert (first <= 2) if heading == "along" else (first >= 9)


@pytest.mark.slow
def test_too_many_episodes_for_one_house(tmp_path: Path) -> None:
    config = HousesConfig(
        train_houses=1, val_unseen_houses=1, train_episodes=30, val_seen_episodes=6, val_unseen_episodes=9000
    )
    with pytest.raises(UsageError, match=r"val_unseen_episodes = 9000.*more houses"):
        generate(tmp_path, config)
    assert not is_complete(tmp_path, config)


def test_unwritable_root_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose a writable folder"):
        generate(tmp_path / "file", HousesConfig())
