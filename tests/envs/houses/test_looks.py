"""The second edition: houses that look different, in several looks, with far goals, many words and added sets."""

from __future__ import annotations

import hashlib
import io
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.render.scene import load_scene
from envs.houses.edition import HOUSES, HOUSES_2, SCENES_DIR
from envs.houses.files.augment import ENVIRONMENTS, EnvDropManifest, augment
from envs.houses.files.dataset import generate
from envs.houses.files.manifest import HousesManifest, house_names
from envs.houses.files.verify import verify
from envs.houses.generator import GENERATOR, GENERATOR_2
from envs.houses.language.grammar import tokenize, vocabulary
from envs.houses.model.colors import NAMED, nearest_name, paints
from envs.houses.model.model import house_primitives
from envs.houses.model.style import DrawnStyle, style_of
from envs.houses.options import Houses2Config, Houses2Options, HousesConfig, HousesOptions
from envs.houses.plan.house import House, dropped_name, make_house
from envs.houses.shapes import patterns
from envs.houses.shapes.glb_writer import glb_bytes
from tests.envs.houses.conftest import read_json
from tests.envs.houses.test_dataset import tree
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.check import check_data
from vlnbench.data.datasets import locate
from vlnbench.data.episodes import load_split, read_ground_truth
from vlnbench.errors import UsageError

CONFIG = Houses2Config(
    seed=3,
    train_houses=1,
    val_unseen_houses=1,
    train_episodes=18,
    val_seen_episodes=6,
    val_seen_far_episodes=6,
    val_unseen_episodes=6,
    val_unseen_far_episodes=6,
)
SPLITS = (*HOUSES_2.drawn, "val_unseen_evening", "val_unseen_textures", "train_evening")
BENCHMARK = get_benchmark("houses2-r2r")
ADDED = 24
SMALL: dict[str, Any] = {"train_episodes": 6, "val_seen_episodes": 6}


@dataclass(frozen=True)
class Made:
    root: Path
    manifest: HousesManifest
    envdrop: EnvDropManifest
    noise: EnvDropManifest
    speaker: EnvDropManifest

    def episodes(self, split: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = read_json(self.root / HOUSES_2.r2r_dir / split / f"{split}.json.gz")[
            "episodes"
        ]
        return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("houses2")
    manifest = generate(root, CONFIG, splits=SPLITS)
    sets = (augment(root, CONFIG, split, episodes=ADDED) for split in HOUSES_2.additions)
    return Made(root, manifest, *sets)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A house of the first edition."""
    root = tmp_path_factory.mktemp("houses")
    generate(root, HousesConfig(seed=3, train_houses=1, **SMALL), splits=("train",))
    return root


def style(house: House, look: str = "") -> DrawnStyle:
    found = style_of(house, CONFIG, look)
    assert isinstance(found, DrawnStyle)
    return found


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def test_scene_files_are_the_same_everywhere() -> None:
    """Whole files: no release of numpy, Pillow or zlib shows in them. Digests change with the generator's houses,
    and so must the version of the edition."""
    found = {look: digest(scene_of("s3_train_000", CONFIG, look)) for look in ("", *HOUSES_2.looks)}
    assert found == {"": "9095931212770942", "evening": "5535a6e41dbc3260", "textures": "8cac81ddf293678c"}


def test_images_are_the_same_everywhere() -> None:
    images = (patterns.tile_png(name, 5, (1, 2, 3), (250, 9, 7)) for name in patterns.PATTERNS)
    assert digest(b"".join(images)) == "e6a767ac74318051"


@pytest.mark.parametrize("name", patterns.PATTERNS)
def test_patterns_keep_their_tones_and_differ_by_seed(name: str) -> None:
    made = [patterns.PATTERNS[name](seed) for seed in range(12)]
    assert all(0 <= each.min() <= each.max() < 2 * patterns.TONES for each in made)
    assert len({each.tobytes() for each in made}) > 1


def test_an_image_of_numbers_is_a_png() -> None:
    pixels = np.arange(300).reshape(3, 100) % 256
    colors = [(i, 255 - i, i // 2) for i in range(256)]
    read = np.asarray(Image.open(io.BytesIO(patterns.indexed_png(pixels, colors))).convert("RGB"))
    assert (read == np.array(colors)[pixels]).all()
    large = np.arange(400 * 400).reshape(400, 400) % 256  # more than one stored block
    read = np.asarray(Image.open(io.BytesIO(patterns.indexed_png(large, colors))).convert("RGB"))
    assert (read == np.array(colors)[large]).all()


@pytest.mark.parametrize("seed", range(40))
def test_colors_that_are_named_stay_nearest_to_their_name(seed: int) -> None:
    drawn = paints(random.Random(seed))
    assert [nearest_name(drawn[name]) for name in NAMED] == list(NAMED)
    assert drawn != paints(random.Random(seed + 1000))


def test_houses_differ_and_groups_leave_out_patterns() -> None:
    house, seen = make_house("s3_train_000", CONFIG), dict[str, set[str]]()
    for group in ("train", "unseen"):
        for look in ("", "textures"):
            named = (replace(house, name=f"s3_{group}_{i:03d}") for i in range(12))
            styles = [style(each, look) for each in named]
            assert len({each.wall(0) + each.floor(0) for each in styles}) > 8
            seen[group + look] = {each.pattern for one in styles for each in (*one._floors, *one._walls)}
    assert seen["unseen"] - seen["train"]
    assert seen["train"] - seen["unseen"]
    assert not (seen["traintextures"] | seen["unseentextures"]) & (seen["train"] | seen["unseen"])


def test_evening_is_dark_and_warm_and_changes_nothing_else() -> None:
    house = make_house("s3_unseen_000", CONFIG)
    day, evening = (house_primitives(house, random.Random(0), style_of(house, CONFIG, x)) for x in ("", "evening"))
    means = [np.concatenate([each.colors for each in one]).mean(axis=0) for one in (day, evening)]
    assert means[1].mean() < 0.75 * means[0].mean()
    assert means[1][2] / means[1][0] < 0.75 < means[0][2] / means[0][0]
    assert [each.png for each in day if each.name != "palette"] == [
        each.png for each in evening if each.name != "palette"
    ]


def test_houses_that_share_all_have_further_looks(tmp_path: Path) -> None:
    """The first edition: its files as they were, and the same episodes in materials of each house."""
    config = HousesConfig(
        seed=3, train_houses=1, val_unseen_houses=2, train_episodes=6, val_seen_episodes=6, val_unseen_episodes=6
    )
    before = generate(tmp_path, config, splits=("val_unseen",)).files
    after = generate(tmp_path, config, splits=[f"val_unseen_{look}" for look in HOUSES.looks]).files
    assert before.items() <= after.items()
    own, *others = (
        read_json(tmp_path / HOUSES.r2r_dir / split / f"{split}.json.gz")["episodes"]
        for split in ("val_unseen", *(f"val_unseen_{look}" for look in HOUSES.looks))
    )
    for look, episodes in zip(HOUSES.looks, others, strict=True):
        scenes = [f"{each['scene_id'].removesuffix('.glb')}_{look}.glb" for each in own]
        assert episodes == [{**each, "scene_id": scene} for each, scene in zip(own, scenes, strict=True)]
    scenes = {look: scene_of("s3_unseen_000", config, look) for look in ("", *HOUSES.looks)}
    assert len({digest(scene) for scene in scenes.values()}) == 4
    assert digest(scenes["materials"]) == "8ea2bd79757f9576"
    floors = [
        {style_of(make_house(f"s3_unseen_00{i}", config), config, look).floor(0) for i in range(2)}
        for look in ("", "materials")
    ]
    assert list(map(len, floors)) == [1, 2]


def scene_of(name: str, config: HousesConfig, look: str) -> bytes:
    house = make_house(name, config)
    return glb_bytes(house_primitives(house, random.Random("x"), style_of(house, config, look)), "t")


def test_looks_have_the_navmesh_that_their_scene_gives(made: Made, tmp_path: Path) -> None:
    settings = NavMeshSettings()
    for path in sorted((made.root / "scene_datasets/houses2").glob("*/*_*_*_*.glb")):
        scene = load_scene(path)
        built = PathFinder.from_polymesh(*build_polymesh(scene.vertices, scene.triangles, settings), settings)
        built.save(tmp_path / "again.navmesh")
        assert (tmp_path / "again.navmesh").read_bytes() == path.with_suffix(".navmesh").read_bytes(), path


def test_a_split_in_another_look_has_the_same_episodes(made: Made) -> None:
    for split in ("val_unseen_evening", "val_unseen_textures", "train_evening"):
        base, look = HOUSES_2.drawn_as(split)
        for own, other in zip(made.episodes(base), made.episodes(split), strict=True):
            folder = own["scene_id"].removesuffix(".glb")
            assert other == {**own, "scene_id": f"{folder}_{look}.glb"}
            assert (made.root / "scene_datasets" / other["scene_id"]).is_file()


def test_far_goals_are_out_of_reach_of_who_stops_in_the_door(made: Made) -> None:
    for split in HOUSES_2.far:
        files = locate(BENCHMARK, split, made.root)
        for episode in read_ground_truth(load_split(BENCHMARK, split, made.root).episodes, files):
            assert episode.ground_truth is not None
            path = made.root / "scene_datasets" / episode.scene_id
            house = make_house(path.stem, CONFIG)
            mesh = PathFinder.load(path.with_suffix(".navmesh"))
            (goal,) = episode.goals
            last = house.plan.room_at(goal[0], goal[2], goal[1])
            entered = next(
                p for p in episode.ground_truth.locations if house.plan.room_at(p[0], p[2], p[1]) == last
            )
            assert mesh.geodesic_distance(entered, goal) > BENCHMARK.success_distance_m


@pytest.mark.parametrize("split", [*SPLITS, "envdrop"])
def test_every_instruction_is_true(made: Made, split: str) -> None:
    files = locate(BENCHMARK, split, made.root)
    truth = read_ground_truth(load_split(BENCHMARK, split, made.root).episodes, files)
    found = GENERATOR_2.verify(made.root, truth, split)
    assert (found.wrong, found.first) == (0, "")
    assert found.checked == len(made.episodes(split)) > 0


def test_untrue_words_are_found_in_other_ways_of_saying_it(made: Made) -> None:
    episodes = load_split(BENCHMARK, "train", made.root).episodes
    truth = read_ground_truth(episodes, locate(BENCHMARK, "train", made.root))
    swap = {"left": "right", "right": "left"}
    texts = [" ".join(swap.get(word, word) for word in e.instruction.split()) for e in truth]
    wrong = [replace(e, instruction=text) for e, text in zip(truth, texts, strict=True) if text != e.instruction]
    assert len(wrong) > 5
    assert verify(made.root, HOUSES_2, wrong).wrong == len(wrong)


def test_words_are_many(made: Made) -> None:
    words = set(vocabulary((HOUSES_2.voice,))) - {"<pad>", "<unk>", ".", ","}
    assert len(words) >= 700
    texts = [e["instruction"]["instruction_text"] for split in HOUSES_2.drawn for e in made.episodes(split)]
    assert len({word for text in texts for word in tokenize(text)}) > 250


def test_environment_dropout_refurnishes_houses_and_stays_true(made: Made) -> None:
    assert (made.envdrop.untrue, made.envdrop.episodes) == (0, ADDED)
    assert made.envdrop.checked > 0
    names = {Path(e["scene_id"]).stem for e in made.episodes("envdrop")}
    houses = house_names(CONFIG)["train"]
    assert names == {dropped_name(name, i) for name in houses for i in range(ENVIRONMENTS)}
    for name in houses:
        before, after = make_house(name, CONFIG), make_house(dropped_name(name, 0), CONFIG)
        assert after.plan == before.plan
        assert [look.kind for look in after.looks] == [look.kind for look in before.looks]
        assert not set(after.items) & set(before.items)
        assert style(before).wall(1) != style(after).wall(1)


def test_noise_is_said_to_be_untrue_and_environment_dropout_is_not(made: Made) -> None:
    assert made.noise.untrue > 0
    assert made.speaker.untrue == 0 < made.speaker.checked
    lines = {split: list(map(str, check_data(made.root, "houses2-r2r", split))) for split in HOUSES_2.additions}
    assert any("0 of 24 are untrue or ambiguous" in line for line in lines["envdrop"])
    assert any("the speaker's noise included" in line for line in lines["noise"])
    assert any("0 of 24 are untrue or ambiguous" in line for line in lines["speaker"])


def test_the_speaker_tells_new_walks_in_the_same_houses(made: Made) -> None:
    spoken = {split: made.episodes(split) for split in ("train", "noise", "speaker")}
    houses, _, others = ({e["scene_id"] for e in episodes} for episodes in spoken.values())
    assert others == houses
    walked = [
        {(tuple(e["start_position"]), *map(tuple, e["reference_path"])) for e in each} for each in spoken.values()
    ]
    assert walked[2]
    assert not walked[2] & (walked[0] | walked[1])


@pytest.mark.parametrize("split", HOUSES.additions)
def test_an_added_set_in_another_look_has_the_same_episodes(small: Path, split: str) -> None:
    config, name = HousesConfig(seed=3, train_houses=1, **SMALL), f"{split}_materials"
    made = augment(small, config, name, episodes=ADDED)
    assert made == augment(small, config, name, episodes=ADDED)
    own, other = (
        read_json(small / HOUSES.r2r_dir / each / f"{each}.json.gz")["episodes"] for each in (split, name)
    )
    assert len(own) == ADDED
    for before, after in zip(own, other, strict=True):
        scene = f"{before['scene_id'].removesuffix('.glb')}_materials.glb"
        assert after == {**before, "scene_id": scene}
        assert f"{SCENES_DIR}/{scene}" in made.files
    assert ("_drop" in scene) == (split == HOUSES.dropped)
    (line,) = (str(each) for each in check_data(small, "houses-r2r", name) if "untrue" in str(each))
    assert ("noise included" in line) == (split == HOUSES.noisy) == (made.untrue > 0)


@pytest.mark.slow
def test_same_options_same_bytes_in_any_order(made: Made, tmp_path: Path) -> None:
    generate(tmp_path, CONFIG, splits=("val_unseen_textures",))
    generate(tmp_path, CONFIG, splits=("train_evening",))
    augment(tmp_path, CONFIG, "noise", episodes=ADDED)
    augment(tmp_path, CONFIG, "speaker", episodes=ADDED)
    generate(tmp_path, CONFIG, splits=SPLITS)
    augment(tmp_path, CONFIG, "envdrop", episodes=ADDED)
    assert tree(tmp_path) == tree(made.root)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"look": ("dusk",)}, "--look dusk: unknown look 'dusk'"),
        ({"added_episodes": 3}, "--added-episodes 3: expected 1 or more, with --envdrop, --noise or --speaker"),
        ({"added_episodes": 0, "noise": True}, "--added-episodes 0: expected 1 or more"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        list(GENERATOR_2.generate(Houses2Options(data_root=tmp_path / "data", **options)))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_look_that_the_first_edition_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--look dusk: unknown look 'dusk'"):
        list(GENERATOR.generate(HousesOptions(data_root=tmp_path / "data", look=("dusk",))))


def test_a_split_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown split of houses2-r2r 'val_unseen_dusk'"):
        locate(BENCHMARK, "val_unseen_dusk", tmp_path)
