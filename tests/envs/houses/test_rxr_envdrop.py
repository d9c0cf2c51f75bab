"""houses-rxr and the envdrop split: formats of RxR-CE and EnvDrop, read by vlnbench's readers."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.houses.edition import HOUSES
from envs.houses.files.augment import EnvDropManifest, augment
from envs.houses.files.episode_files import Told
from envs.houses.files.telling import speak, speak_truly
from envs.houses.language.grammar import tokenize
from envs.houses.language.instructions import Noise
from envs.houses.options import HousesConfig
from envs.houses.plan.catalog import FURNISHINGS
from envs.houses.plan.rooms import KINDS
from envs.houses.shapes.textures import COLORS
from tests.envs.houses.conftest import TINY, Generated, read_json
from tests.envs.houses.test_dataset import keys, tree
from tests.synthetic import rxr_entry
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.errors import UsageError

LANGUAGES = ("en-US", "en-IN", "hi-IN", "te-IN")
EPISODES = 90


@pytest.fixture(scope="module")
def augmented(tiny: Generated, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EnvDropManifest]:
    root = tmp_path_factory.mktemp("augmented")
    shutil.copytree(tiny.root, root, dirs_exist_ok=True)
    return root, augment(root, TINY, episodes=EPISODES)


def fields_of(entry: dict[str, Any]) -> Any:
    """The shape of an entry; words may come without times."""
    shape = keys({**entry, "instruction": {**entry["instruction"], "timed_instruction": None}})
    return {key: shape[key] for key in sorted(shape)}


@pytest.mark.parametrize("role", ["guide", "follower"])
def test_rxr_episodes_have_the_documented_schema(tiny: Generated, role: str) -> None:
    expected = rxr_entry(role=role)
    for split in HOUSES.drawn:
        content = tiny.rxr(f"{split}_{role}")
        assert list(content) == ["episodes"]
        truth = tiny.rxr(f"{split}_{role}_gt")
        assert list(truth) == [episode["episode_id"] for episode in content["episodes"]]
        for episode in content["episodes"]:
            assert fields_of(episode) == fields_of(expected)
            words = [entry["word"] for entry in episode["instruction"]["timed_instruction"]]
            assert words == episode["instruction"]["instruction_text"].split()


def test_every_trajectory_is_told_in_four_languages(tiny: Generated) -> None:
    for split in HOUSES.drawn:
        guides = tiny.rxr(f"{split}_guide")["episodes"]
        r2r = tiny.split(split)["episodes"]
        ids = [int(episode["instruction"]["instruction_id"]) for episode in guides]
        assert ids == list(range(HOUSES.first_id(split), HOUSES.first_id(split) + len(guides)))
        assert [e["instruction"]["language"] for e in guides] == list(LANGUAGES) * (len(guides) // 4)
        paths = {(e["trajectory_id"], e["scene_id"], tuple(e["start_position"])) for e in guides}
        assert paths == {(str(e["trajectory_id"]), e["scene_id"], tuple(e["start_position"])) for e in r2r}
        assert len(guides) == 4 * len(paths)


def test_followers_walk_after_a_guide(tiny: Generated) -> None:
    for split in HOUSES.drawn:
        guides = {e["instruction"]["instruction_id"]: e for e in tiny.rxr(f"{split}_guide")["episodes"]}
        followers = tiny.rxr(f"{split}_follower")["episodes"]
        assert len(followers) == len(guides) // 4
        assert not {e["episode_id"] for e in followers} & {e["episode_id"] for e in guides.values()}
        for episode in followers:
            guide = guides[episode["instruction"]["instruction_id"]]
            assert all(episode[name] == guide[name] for name in ("scene_id", "goals", "instruction"))
            assert episode["info"]["demonstration_id"] == episode["instruction"]["instruction_id"]
            assert 0.0 < episode["info"]["metrics"]["ne"] < 0.5
            assert 0.7 < episode["info"]["metrics"]["spl"] <= 1.0


def test_the_rxr_reader_filters_languages_and_roles(tiny: Generated) -> None:
    houses = get_benchmark("houses-rxr")
    every = load_split(houses, "val_unseen", tiny.root)
    assert {episode.language for episode in every.episodes} == set(LANGUAGES)
    assert every.version == "houses-3"
    assert all(e.instruction_id and e.ground_truth for e in every.episodes)
    for languages in (("en-US", "en-IN"), ("hi-IN",), ("te",)):
        some = load_split(replace(houses, languages=languages), "val_unseen", tiny.root).episodes
        assert len(some) == len(every.episodes) * (2 if len(languages) == 2 else 1) // 4
        assert {e.language[:2] for e in some} == {language[:2] for language in languages}
    both = load_split(replace(houses, roles=("guide", "follower")), "val_unseen", tiny.root)
    assert len(both.episodes) == len(every.episodes) * 5 // 4


def test_rxr_texts_are_long_and_in_their_script(tiny: Generated) -> None:
    guides = [e["instruction"] for e in tiny.rxr("train_guide")["episodes"]]
    words = {
        language: np.mean([len(i["instruction_text"].split()) for i in guides if i["language"] == language])
        for language in LANGUAGES
    }
    assert 75 < words["en-US"] < 115
    assert 75 < words["en-IN"] < 115
    for instruction in guides:
        latin = re.search("[A-Za-z]", instruction["instruction_text"]) is not None
        assert latin == instruction["language"].startswith("en")


def test_words_of_val_unseen_occur_in_train(tiny: Generated) -> None:
    """Of the grammar, that is: what rooms and objects a few houses hold is chance."""
    content = set(tokenize(" ".join([*KINDS, *FURNISHINGS, *COLORS])))
    train, unseen = (
        set(tokenize(" ".join(e["instruction"]["instruction_text"] for e in tiny.split(split)["episodes"])))
        for split in ("train", "val_unseen")
    )
    assert len(unseen - train - content) < 0.2 * len(unseen)  # few walks do not use every synonym


def test_envdrop_has_the_schema_of_train(augmented: tuple[Path, EnvDropManifest]) -> None:
    root, manifest = augmented
    folder = root / "datasets/houses_r2r"
    train = read_json(folder / "train/train.json.gz")
    extra, truth = read_json(folder / "envdrop/envdrop.json.gz"), read_json(folder / "envdrop/envdrop_gt.json.gz")
    assert extra["instruction_vocab"] == train["instruction_vocab"]
    assert all(keys(episode) == keys(train["episodes"][0]) for episode in extra["episodes"])
    assert len(extra["episodes"]) == manifest.episodes == EPISODES
    assert list(truth) == [str(e["episode_id"]) for e in extra["episodes"]]
    ids = {e["episode_id"] for e in train["episodes"]}
    assert not ids & {e["episode_id"] for e in extra["episodes"]}, "train and envdrop can be joined"
    assert {e["scene_id"] for e in extra["episodes"]} == {e["scene_id"] for e in train["episodes"]}
    trajectories = {e["trajectory_id"] for e in extra["episodes"]}
    assert len(trajectories) == manifest.trajectories == -(-EPISODES // 4)


def test_envdrop_is_a_split_of_houses_r2r(augmented: tuple[Path, EnvDropManifest]) -> None:
    episodes = load_split(get_benchmark("houses-r2r"), "envdrop", augmented[0])
    assert len(episodes.episodes) == EPISODES
    assert episodes.version == "houses-3"
    assert not episodes.partial


def test_noise_is_recorded(augmented: tuple[Path, EnvDropManifest]) -> None:
    root, manifest = augmented
    written = json.loads((root / HOUSES.addition_manifest("envdrop")).read_text())
    assert written["noise"] == {"dropped": 0.08, "wrong_side": 0.04, "wrong_object": 0.06}
    assert written["checked"] == manifest.checked > 0
    assert 0.1 < manifest.untrue / manifest.checked < 0.7


def test_same_noise_same_bytes_other_noise_other_truth(
    tiny: Generated, augmented: tuple[Path, EnvDropManifest], tmp_path: Path
) -> None:
    root, manifest = augmented
    before = tree(root)
    assert augment(root, TINY, episodes=EPISODES) == manifest
    assert tree(root) == before
    shutil.copytree(tiny.root, tmp_path, dirs_exist_ok=True)
    quiet = augment(tmp_path, TINY, episodes=EPISODES, noise=Noise(0.0, 0.0, 0.0))
    assert quiet.untrue < manifest.untrue
    assert augment(tmp_path, TINY, episodes=EPISODES).files == manifest.files
    assert tree(tmp_path) == before


def test_augmentation_needs_the_houses(augmented: tuple[Path, EnvDropManifest], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="run `vlnbench data houses` first"):
        augment(tmp_path, TINY)
    with pytest.raises(UsageError, match="run `vlnbench data houses` first"):
        augment(augmented[0], HousesConfig())
    with pytest.raises(UsageError, match="envdrop_episodes = 0"):
        augment(augmented[0], TINY, episodes=0)


def test_walks_of_which_fewer_texts_are_true_are_made_up_for(
    augmented: tuple[Path, EnvDropManifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    def once(*asked: Any) -> Iterator[Told]:
        return (replace(row, texts=row.texts[:1]) for row in speak_truly(*asked))

    monkeypatch.setattr("envs.houses.files.augment.speak_truly", once)
    made = augment(augmented[0], TINY, "speaker", episodes=8)
    assert made.trajectories == 8


def test_too_large_an_augmentation_leaves_nothing(
    tiny: Generated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny.root, tmp_path, dirs_exist_ok=True)
    before = tree(tmp_path)
    monkeypatch.setattr("envs.houses.files.augment.speak", lambda *options: islice(speak(*options), 3))
    with pytest.raises(UsageError, match="envdrop_episodes = 25: the houses only have 24"):
        augment(tmp_path, TINY, episodes=25)
    assert tree(tmp_path) == before
