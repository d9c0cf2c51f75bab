"""Every layout in use, with synthetic files: which of them are taken, and what is said about them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import PlaneEnv
from tests.synthetic import SCENE, ground_truth, heading, r2r_entry, rxr_entry, write, write_split
from vlnbench.cli import main
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.datasets import expected_count, find_scenes_dir, locate, r2r_version
from vlnbench.data.episodes import EpisodeSet, load_split
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import make_plan
from vlnbench.rollout.agents import load_agent
from vlnbench.rollout.inline import Inline
from vlnbench.training.collect.render import recorded

V1_2 = ("R2R_VLNCE_v1-2_preprocessed", "R2R_VLNCE_v1-2", "R2R_VLNCE_v1-2_preprocessed_BERTidx")
R2R = replace(
    get_benchmark("r2r-ce"),
    dataset_folders=("R2R_VLNCE_v1-3_preprocessed", "R2R_VLNCE_v1-3", "r2r", *V1_2),
    splits={"train": 3, "val_seen": 2, "test": None, "envdrop": 146304, "joint_train_envdrop": 157123},
)
RXR = replace(get_benchmark("rxr-habitat"), splits={"train": None, "val_unseen": 2, "test_challenge": None})
ENGLISH = replace(get_benchmark("rxr-ce"), splits={"val_unseen": None})
ENTRIES = [r2r_entry(7), r2r_entry(8)]
TURNED = [r2r_entry(7, start_rotation=heading(17.0)), r2r_entry(8)]
GUIDES = [rxr_entry("1"), rxr_entry("2", language="hi-IN")]
FOLLOWERS = [rxr_entry("60301", "follower")]


def load(root: Path, split: str = "val_seen") -> EpisodeSet:
    return load_split(R2R, split, root, allow_partial=True)


@pytest.mark.parametrize(
    ("folder", "entries", "version"),
    [
        ("datasets/R2R_VLNCE_v1-3_preprocessed", ENTRIES, "v1-3"),
        ("datasets/R2R_VLNCE_v1-3", ENTRIES, "v1-3"),
        ("datasets/R2R_VLNCE_v1-2_preprocessed", TURNED, "v1-2"),
        ("datasets/R2R_VLNCE_v1-2", TURNED, "v1-2"),
        ("datasets/r2r", ENTRIES, "v1-3"),
        ("datasets/r2r", TURNED, "v1-2"),
        ("vln_ce/raw_data/r2r", ENTRIES, "v1-3"),
    ],
)
def test_layouts_of_r2r(tmp_path: Path, folder: str, entries: list[dict[str, object]], version: str) -> None:
    path = write_split(tmp_path / folder / "val_seen", "val_seen", entries)
    found = load(tmp_path)
    assert (found.path, found.gt_path) == (path, path.with_name("val_seen_gt.json.gz"))
    assert (found.version, found.partial, found.passed_over) == (version, False, ())
    assert [episode.episode_id for episode in found.episodes] == ["7", "8"]
    assert all(episode.ground_truth for episode in found.episodes)


@pytest.mark.parametrize("name", ["val_seen.json.gz", "val_seen.gz", "val_seen.json", "val_seen"])
def test_suffixes(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "datasets" / "r2r" / "val_seen" / name, {"episodes": ENTRIES})
    found = load(tmp_path)
    assert (found.path, found.gt_path) == (path, None)


def test_bert_indices_use_the_ground_truth_of_the_words(tmp_path: Path) -> None:
    words, indices = (tmp_path / "datasets" / V1_2[i] / "val_seen" for i in (0, 2))
    write(words / "val_seen_gt.json.gz", ground_truth(TURNED))
    path = write(indices / "val_seen_bertidx.json.gz", {"episodes": TURNED})
    found = load(tmp_path)
    assert (found.path, found.gt_path, found.version) == (path, words / "val_seen_gt.json.gz", "v1-2")
    own = write(indices / "val_seen_gt.json.gz", ground_truth(TURNED))
    assert load(tmp_path).gt_path == own


@pytest.mark.parametrize("base", ["datasets/R2R_VLNCE_v1-3_preprocessed", "datasets/r2r", "datasets"])
@pytest.mark.parametrize("suffix", [".json.gz", ".gz", ""])
def test_envdrop_and_the_joint_split(tmp_path: Path, base: str, suffix: str) -> None:
    for split in ("envdrop", "joint_train_envdrop"):
        path = write_split(tmp_path / base / split, split, ENTRIES, suffix)
        found = load(tmp_path, split)
        assert (found.path, found.version, found.partial) == (path, "v1-3", True)
        assert found.gt_path == path.with_name(f"{split}_gt.json.gz")


def test_only_augmentations_lie_beside_the_dataset_folders(tmp_path: Path) -> None:
    write_split(tmp_path / "datasets" / "val_seen", "val_seen", ENTRIES)
    with pytest.raises(UsageError, match="no episode file"):
        load(tmp_path)


def test_the_test_split_has_no_goals_and_no_ground_truth(tmp_path: Path) -> None:
    entry = {key: value for key, value in r2r_entry().items() if key not in ("info", "goals", "reference_path")}
    write(tmp_path / "datasets" / "R2R_VLNCE_v1-3" / "test" / "test.json.gz", {"episodes": [entry]})
    found = load(tmp_path, "test")
    assert (found.gt_path, found.episodes[0].goals) == (None, ())


def test_the_first_of_several_is_taken_and_the_others_are_named(tmp_path: Path) -> None:
    datasets = tmp_path / "datasets"
    renamed = write_split(datasets / "r2r" / "val_seen", "val_seen", TURNED)
    intern = write_split(tmp_path / "vln_ce" / "raw_data" / "r2r" / "val_seen", "val_seen", TURNED)
    first = write_split(datasets / "R2R_VLNCE_v1-3_preprocessed" / "val_seen", "val_seen", ENTRIES)
    unpacked = write(first.with_name("val_seen.json"), {"episodes": ENTRIES})
    found = load(tmp_path)
    assert found.path == first
    assert found.passed_over == (unpacked, renamed, intern)


def test_links_tell_the_version_of_what_they_point_to(tmp_path: Path) -> None:
    """A link called r2r is how StreamVLN's layout is usually made; a few headings could tell nothing or lie."""
    real = tmp_path / "store" / "R2R_VLNCE_v1-2"
    write_split(real / "val_seen", "val_seen", ENTRIES)
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "r2r").symlink_to(real)
    assert load(tmp_path).version == "v1-2"


@pytest.mark.parametrize("folder", ["datasets/RxR_VLNCE_v0", "datasets/rxr", "vln_ce/raw_data/rxr"])
def test_layouts_of_rxr(tmp_path: Path, folder: str) -> None:
    path = write_split(tmp_path / folder / "val_unseen", "val_unseen_guide", GUIDES)
    write_split(path.parent, "val_unseen_follower", FOLLOWERS)
    found = load_split(RXR, "val_unseen", tmp_path)
    assert (found.path, found.gt_path) == (path, path.with_name("val_unseen_guide_gt.json.gz"))
    assert found.version == ("v0" if folder.endswith("v0") else "unknown")
    assert [episode.instruction_id for episode in found.episodes] == ["40", "40"]


def test_roles_of_rxr(tmp_path: Path) -> None:
    folder = tmp_path / "datasets" / "rxr" / "val_unseen"
    guide = write_split(folder, "val_unseen_guide", GUIDES)
    guides_only = load_split(RXR, "val_unseen", tmp_path)
    both = replace(RXR, roles=(), splits={"val_unseen": None})
    missing = r"val_unseen_follower\.json\.gz: there is no such file, .* leave it out with `roles: \[guide\]`"
    with pytest.raises(UsageError, match=missing):
        load_split(both, "val_unseen", tmp_path)
    follower = write_split(folder, "val_unseen_follower", FOLLOWERS)
    found = load_split(both, "val_unseen", tmp_path)
    assert [episode.episode_id for episode in found.episodes] == ["1", "2", "60301"]
    assert all(episode.ground_truth for episode in found.episodes)
    assert found.sha256 != guides_only.sha256 == load_split(RXR, "val_unseen", tmp_path).sha256
    assert locate(both, "val_unseen", tmp_path).paths == (guide, follower)
    followers = replace(both, roles=("follower",))
    assert [episode.episode_id for episode in load_split(followers, "val_unseen", tmp_path).episodes] == ["60301"]
    follower.unlink()
    with pytest.raises(UsageError, match=r"expected .*val_unseen_follower\.json\.gz"):
        load_split(followers, "val_unseen", tmp_path)


def test_the_challenge_split_of_rxr(tmp_path: Path) -> None:
    entry = rxr_entry(goals=None, reference_path=None)
    path = tmp_path / "datasets" / "RxR_VLNCE_v0" / "test_challenge" / "test_challenge_guide.json.gz"
    write(path, {"episodes": [entry]})
    found = load_split(RXR, "test_challenge", tmp_path)
    assert (found.path, found.gt_path, found.episodes[0].goals) == (path, None, ())


def test_files_cut_to_english_serve_english_benchmarks(tmp_path: Path) -> None:
    folder = tmp_path / "vln_ce" / "raw_data" / "rxr" / "val_unseen"
    path = write(folder / "val_unseen_guide_en.json.gz", {"episodes": GUIDES[:1]})
    gt_path = write(folder / "val_unseen_guide_gt.json.gz", ground_truth(GUIDES))
    found = load_split(ENGLISH, "val_unseen", tmp_path)
    assert (found.path, found.gt_path) == (path, gt_path)
    with pytest.raises(UsageError, match="no episode file"):
        load_split(RXR, "val_unseen", tmp_path)
    whole = write(folder / "val_unseen_guide.json.gz", {"episodes": GUIDES})
    found = load_split(ENGLISH, "val_unseen", tmp_path)
    assert (found.path, found.passed_over) == (whole, (path,))
    assert [episode.language for episode in found.episodes] == ["en-US"]


def test_missing_split_files_and_unknown_splits(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'val_seen'"):
        load(tmp_path, "val_sen")
    with pytest.raises(UsageError) as caught:
        load(tmp_path)
    first = tmp_path / "datasets" / "R2R_VLNCE_v1-3_preprocessed" / "val_seen" / "val_seen.json.gz"
    assert f"no episode file for r2r-ce val_seen: expected {first} (or the same in " in str(caught.value)
    assert "--data-root" in str(caught.value)


def test_counts_are_checked(tmp_path: Path) -> None:
    path = write_split(tmp_path / "datasets" / "R2R_VLNCE_v1-3" / "train", "train", ENTRIES)
    with pytest.raises(UsageError) as caught:
        load_split(R2R, "train", tmp_path)
    message = f"{path}: has 2 episodes, but r2r-ce train has 3; get the file again, or run on what is there"
    assert message in str(caught.value)
    assert "--allow-partial" in str(caught.value)
    assert load(tmp_path, "train").partial
    write_split(path.parent, "train", [*ENTRIES, r2r_entry(9)])
    assert not load_split(R2R, "train", tmp_path).partial


def test_envdrop_lost_episodes_in_v1_3() -> None:
    assert expected_count(R2R, "envdrop", "v1-3") == 146304
    assert expected_count(R2R, "envdrop", "v1-2") == 146413
    assert expected_count(R2R, "joint_train_envdrop", "v1-2") == 146413 + 10819
    assert expected_count(R2R, "train", "v1-2") == 3
    assert expected_count(R2R, "test", "unknown") is None


@pytest.mark.parametrize("scenes", ["scene_datasets", "scene_data/mp3d_ce"])
def test_scenes_are_found(tmp_path: Path, scenes: str) -> None:
    write_split(tmp_path / "datasets" / "r2r" / "val_seen", "val_seen", ENTRIES)
    write(tmp_path / scenes / SCENE, b"glTF")
    assert load(tmp_path).scenes_dir == tmp_path / scenes


def test_scenes_of_another_dataset_do_not_hide_those_of_this_one(tmp_path: Path) -> None:
    write(tmp_path / "scene_datasets" / "houses" / "a" / "a.glb", b"glTF")
    write(tmp_path / "scene_data" / "mp3d_ce" / SCENE, b"glTF")
    assert find_scenes_dir(tmp_path, [SCENE]) == tmp_path / "scene_data" / "mp3d_ce"
    assert find_scenes_dir(tmp_path, ["mp3d/none/none.glb"]) == tmp_path / "scene_datasets"


def test_without_scenes_the_usual_folder_is_named(tmp_path: Path) -> None:
    assert find_scenes_dir(tmp_path, [SCENE]) == tmp_path / "scene_datasets"
    (tmp_path / "scene_data" / "mp3d_ce").mkdir(parents=True)
    assert find_scenes_dir(tmp_path, [SCENE]) == tmp_path / "scene_data" / "mp3d_ce"


def test_generated_data_tell_their_version(tmp_path: Path) -> None:
    houses = get_benchmark("houses-r2r")
    write_split(tmp_path / "datasets" / "houses_r2r" / "val_seen", "val_seen", TURNED)
    assert load_split(houses, "val_seen", tmp_path).version == "unknown"
    manifest = write(tmp_path / "datasets" / "houses_r2r" / "houses.json", {"version": "houses-1"})
    assert load_split(houses, "val_seen", tmp_path).version == "houses-1"
    for content, reason in (("[", "broken JSON"), ('{"version": [1]}', "field 'version' cannot be read")):
        manifest.write_text(content)
        with pytest.raises(UsageError, match=rf"houses\.json: {reason}"):
            load_split(houses, "val_seen", tmp_path)


@pytest.mark.slow
def test_published_headings_are_those_of_v1_3(shared: Path) -> None:
    for split in ("train", "val_seen", "val_unseen", "test"):
        found = load_split(get_benchmark("r2r-ce"), split, shared / "data")
        assert r2r_version(found.episodes) == found.version == "v1-3"
        assert found.scenes_dir == shared / "data" / "scene_datasets"
        assert not found.partial


def test_runs_on_partial_data_are_asked_for_and_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_split(tmp_path / "datasets" / "R2R_VLNCE_v1-3" / "val_seen", "val_seen", ENTRIES)
    options = ["--benchmark", "r2r-ce", "--split", "val_seen", "--data-root", str(tmp_path), "--agent", "stop"]
    assert main(["eval", *options, "--out", str(tmp_path / "never")]) == 2
    assert f"{path}: has 2 episodes, but r2r-ce val_seen has 778" in capsys.readouterr().err
    assert not (tmp_path / "never").exists()
    identities = []
    for allowed in (get_benchmark("r2r-ce"), R2R):
        found = load_split(allowed, "val_seen", tmp_path, allow_partial=True)
        plan = make_plan(allowed, found, "stop", count=None, seed=0, repeats=1)
        identity = plan.identity(Inline(load_agent("stop"), PlaneEnv()))
        identities.append((identity.dataset_version, identity.partial))
    assert identities == [("v1-3", True), ("v1-3", False)]


def test_the_generated_augmentation_set_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="generate it with `vlnbench data houses --envdrop`"):
        locate(get_benchmark("houses-r2r"), "envdrop", tmp_path)


def test_scalevln_lies_in_its_folder_itself(tmp_path: Path) -> None:
    entry = r2r_entry(7, scene_id="hm3d/00000-abc/abc.basis.glb")
    path = write(tmp_path / "datasets" / "scalevln" / "scalevln_subset_150k.json.gz", {"episodes": [entry]})
    found = load_split(get_benchmark("scalevln"), "scalevln_subset_150k", tmp_path, allow_partial=True)
    assert found.path == path
    for scan in ("abc", "00000-abc"):  # either may name a walk's folder
        record = {"video": f"images/{scan}_scalevln_000007", "actions": [-1, 1, 2]}
        (walk,) = recorded(tmp_path / "annotations.json", [record], found)
        assert walk.actions == (1, 2)
        assert walk.episode.episode_id == "7"
