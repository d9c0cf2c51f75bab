from __future__ import annotations

import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from agents.common.checkpoints.new_tokenizer import write_tokenizer
from agents.common.decoders.placeholders import IGNORED
from agents.common.decoders.windows import Windows
from agents.common.sets.conversations import SYMBOLS, Conversation
from agents.common.sets.trajectories import Trajectory, read_trajectories
from agents.common.sight.mirror import MirrorSamples, mirrored_conversation, mirrored_walk
from agents.common.sight.reader import FrameReader
from agents.streamvln import network as checkpoint
from agents.streamvln.agent import PHRASES, Prompts, Wording
from agents.streamvln.network import load_tokenizer
from agents.streamvln.options import StreamVLNTraining
from agents.streamvln.samples import WindowDataset, collate
from tests.agents.recorded import traces
from tests.agents.streamvln.test_prompt import Letters
from vlnbench.errors import UsageError
from vlnbench.training.data import Mixture


@pytest.fixture(scope="module")
def recorded_samples(goldens: Path) -> list[dict[str, Any]]:
    return traces(goldens)["training"]["samples"]


@pytest.fixture(scope="module")
def trajectories(goldens: Path) -> list[Trajectory]:
    return read_trajectories(goldens / "train_data")


@pytest.fixture(scope="module")
def dataset(goldens: Path, trajectories: list[Trajectory]) -> WindowDataset:
    return WindowDataset(
        trajectories, Prompts(load_tokenizer(goldens / "checkpoint")), Windows(), FrameReader(384)
    )


def test_the_list_of_windows_is_the_recorded_one(goldens: Path, dataset: WindowDataset, recorded_samples) -> None:
    assert len(dataset) == traces(goldens)["training"]["dataset_length"] == len(recorded_samples)
    for sample, key in zip(recorded_samples, dataset.keys, strict=True):
        assert [*key, 0] == sample["data_list_entry"]  # no start turns are skipped


def test_every_recorded_sample_token_for_token(
    goldens: Path, dataset: WindowDataset, trajectories: list[Trajectory], recorded_samples
) -> None:
    for recorded in recorded_samples:
        index = recorded["index"]
        sample = dataset.sample(index, random.Random(recorded["python_random_seed"]))
        assert sample.input_ids == recorded["input_ids"]
        assert sample.labels == recorded["labels"]
        assert sum(label != IGNORED for label in sample.labels) == recorded["supervised_count"]
        assert list(sample.time_ids) == recorded["time_ids"]
        assert (len(sample.images), sample.n_memory) == (recorded["n_images"], recorded["n_memory"])
        memory, turns = dataset.steps(index)
        frames = trajectories[dataset.keys[index].trajectory].frames()
        files = [frames[step] for step in (*memory, *(turn.start for turn in turns))]
        assert [str(file.relative_to(goldens / "train_data")) for file in files] == recorded["files_in_order"]
        means, stds = sample.images.mean((1, 2, 3)), sample.images.std((1, 2, 3))
        np.testing.assert_allclose(means, recorded["images_mean"], rtol=0, atol=1e-6)
        np.testing.assert_allclose(stds, recorded["images_std"], rtol=0, atol=1e-6)


def test_a_batch_keeps_the_samples_apart(dataset: WindowDataset) -> None:
    samples = [Mixture([dataset])[0, 1], Mixture([dataset])[0, 4]]
    batch = collate(samples)
    assert [len(images) for images in batch["images"]] == [10, 11]
    assert batch["input_ids"] == [sample.input_ids for sample in samples]
    assert batch["labels"] == [sample.labels for sample in samples]


def test_a_sample_has_the_recorded_loss(goldens: Path, dataset: WindowDataset, recorded_samples) -> None:
    model = checkpoint.load(goldens / "checkpoint", vision_tower=goldens / "vision_tower", attn="eager")
    (batch,) = (b for b in traces(goldens)["training"]["batches"] if b["sample_indices"] == [1])
    sample = dataset.sample(1, random.Random(recorded_samples[1]["python_random_seed"]))
    with torch.inference_mode():
        loss = model(**collate([sample])).loss
    assert loss.item() == pytest.approx(batch["loss"], abs=1e-5)


def test_a_dataset_travels_to_worker_processes(dataset: WindowDataset) -> None:
    copy = pickle.loads(pickle.dumps(dataset))
    assert Mixture([copy])[0, 3].input_ids == Mixture([dataset])[0, 3].input_ids


def make_folder(root: Path, lengths: list[int], instructions: Any = "Go.", first: int = 0) -> Path:
    """A folder of trajectories with random frames."""
    records = []
    for i, length in enumerate(lengths):
        frames = root / "images" / f"house_{i}" / "rgb"
        frames.mkdir(parents=True)
        for k in range(length):
            noise = np.random.default_rng([i, k]).integers(0, 256, (6, 8, 3), dtype=np.uint8)
            Image.fromarray(noise).save(frames / f"{first + k:03d}.jpg")
        actions = [-1, *([1] * (length - 1))]
        records.append({"id": i, "video": f"images/house_{i}", "instructions": instructions, "actions": actions})
    (root / "annotations.json").write_text(json.dumps(records))
    return root


def made(folder: Path, *, augmented: bool = False, **options: Any) -> WindowDataset:
    frames = FrameReader(8, augmented)
    return WindowDataset(read_trajectories(folder), Prompts(Letters()), Windows(), frames, **options)


def test_short_trajectories_are_left_out_and_exact_windows_have_no_empty_one(tmp_path: Path) -> None:
    dataset = made(make_folder(tmp_path, [3, 4, 32, 33, 64], first=1))
    assert [tuple(key) for key in dataset.keys] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
        (2, 0, 32),
        (3, 0, 0),
        (3, 0, 32),
    ]
    last = Mixture([dataset])[0, 3]
    assert (list(last.time_ids), last.n_memory, len(last.images)) == ([32], 8, 9)
    text = "".join(chr(id_) for id_ in last.input_ids if id_ > 0)
    assert text.endswith("<|im_start|>assistant\nSTOP<|im_end|>\n")


def test_samples_depend_on_seed_epoch_and_index_only(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, [40, 40])

    def drawn(seed: int, epoch: int) -> list[Any]:
        dataset = Mixture([made(folder, augmented=True)], seed)
        return [dataset[epoch, i] for i in (3, 0, 3)]

    first, second = drawn(1, 0), drawn(1, 0)
    for a, b in ((first[0], second[0]), (first[0], first[2])):
        assert a.input_ids == b.input_ids
        assert torch.equal(a.images, b.images)
    for other in (drawn(2, 0), drawn(1, 1)):
        assert not torch.equal(first[0].images, other[0].images)
        assert first[1].input_ids != other[1].input_ids


def test_augmentation_does_not_change_the_text_and_is_drawn_per_frame(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, [40])
    plain, jittered = Mixture([made(folder)])[0, 0], Mixture([made(folder, augmented=True)])[0, 0]
    assert plain.input_ids == jittered.input_ids
    factors = (jittered.images + 1).mean((1, 2, 3)) / (plain.images + 1).mean((1, 2, 3))
    assert len(set(factors.tolist())) == len(factors) == 8


def spoil(folder: Path, **fields: Any) -> None:
    path = folder / "annotations.json"
    records = json.loads(path.read_text())
    records[1] |= fields
    path.write_text(json.dumps(records))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"video": None}, "record 1: field 'video': expected the path"),
        ({"instructions": []}, "record 1: field 'instructions': expected a text or a list of texts"),
        ({"instructions": ["a", 1]}, "record 1: field 'instructions': expected"),
        ({"actions": [1, 1, 1, 1]}, "record 1: field 'actions': expected -1 and then actions from 0 to 3"),
        ({"actions": [-1, 1, 4, 1]}, "record 1: field 'actions': expected"),
        ({"actions": [-1, 1, True, 1]}, "record 1: field 'actions': expected"),
        ({"actions": [-1, 1, 2]}, None),
        (
            {"actions": [-1] + [1] * 9},
            "1 of 2 trajectories have not one frame per action (5 frames missing), first",
        ),
        ({"video": "images/gone"}, "(5 frames missing), first"),
    ],
)
def test_bad_records_are_named(tmp_path: Path, fields: dict[str, Any], message: str | None) -> None:
    spoil(make_folder(tmp_path, [5, 5]), **fields)
    if message is None:
        assert len(read_trajectories(tmp_path)) == 1
        return
    with pytest.raises(UsageError) as caught:
        read_trajectories(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "spelled", ["../other/images/house_1", "images/../../other/images/house_1", "/abs", "a\0b"]
)
def test_frames_outside_the_set_are_refused_although_they_are_there(tmp_path: Path, spelled: str) -> None:
    other = make_folder(tmp_path / "other", [5, 5])
    video = spelled.replace("/abs", str(other / "images" / "house_1"))
    spoil(make_folder(tmp_path / "set", [5, 5]), video=video)
    with pytest.raises(UsageError) as caught:
        read_trajectories(tmp_path / "set")
    where = f"{tmp_path / 'set' / 'annotations.json'}: record 1: field 'video'"
    expected = "a path below the folder of the set, relative and without '..'"
    assert str(caught.value) == f"{where}: expected {expected}, found {video!r}"


def test_missing_and_surplus_frames_are_counted(tmp_path: Path) -> None:
    make_folder(tmp_path, [5, 6, 7])
    shutil.rmtree(tmp_path / "images" / "house_1")
    (tmp_path / "images" / "house_2" / "rgb" / "006.jpg").unlink()
    with pytest.raises(UsageError, match=r"2 of 3 trajectories .* \(7 frames missing\), first .*house_1"):
        read_trajectories(tmp_path)
    shutil.copytree(tmp_path / "images" / "house_0", tmp_path / "images" / "house_1")
    shutil.copy(tmp_path / "images/house_2/rgb/000.jpg", tmp_path / "images/house_2/rgb/006.jpg")
    shutil.copy(tmp_path / "images/house_2/rgb/000.jpg", tmp_path / "images/house_2/rgb/007.jpg")
    with pytest.raises(UsageError, match=r"2 of 3 trajectories .* \(1 frames missing\), first .*house_1"):
        read_trajectories(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "annotations.json: not there"),
        ("[", "cannot be read as JSON"),
        ("{}", "expected a list of trajectories"),
        ("[1]", "record 0: expected an object"),
        ("[]", "expected a list of trajectories"),
    ],
)
def test_bad_annotations_are_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "annotations.json").write_text(content)
    with pytest.raises(UsageError, match=message) as caught:
        read_trajectories(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    dataset = made(make_folder(tmp_path, [5]))
    (tmp_path / "images/house_0/rgb/004.jpg").write_bytes(b"\xff\xd8 nothing more")
    with pytest.raises(UsageError, match=r"004.jpg: cannot be read as an image"):
        Mixture([dataset])[0, 0]


def test_the_evaluations_wording_is_what_the_agent_feeds_and_expects(tmp_path: Path) -> None:
    dataset = made(make_folder(tmp_path, [40]), wording="evaluation")
    prompts = Prompts(Letters())
    sample = Mixture([dataset])[0, 1]
    rng = random.Random("0/0/1")
    answers = [prompts.block("assistant", text)[:-1] for text in ("↑↑↑↑", "↑↑↑STOP")]
    expected = prompts.opening("Go.", rng.choice(PHRASES), memory=True)
    expected += prompts.following(answers[0], rng.choice(PHRASES)) + answers[1]
    assert sample.input_ids == expected
    assert [label for label in sample.labels if label != IGNORED] == answers[0] + answers[1]
    assert all(label in (IGNORED, id_) for id_, label in zip(sample.input_ids, sample.labels, strict=True))


def actions_apart(folder: Path, text: str) -> Prompts:
    """With a tokenizer that writes every action as one token."""
    ids = write_tokenizer(folder, [text], 300, (*SYMBOLS, *PHRASES))
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(ids)}))
    return Prompts(load_tokenizer(folder))


@pytest.mark.parametrize("wording", ["published", "evaluation"])
def test_inflections_weigh_more(tmp_path: Path, wording: Wording) -> None:
    folder = make_folder(tmp_path / "set", [40])
    records = json.loads((folder / "annotations.json").read_text())
    records[0]["actions"][30:35] = [2, 2, 1, 3, 1]
    (folder / "annotations.json").write_text(json.dumps(records))
    prompts = actions_apart(tmp_path, "Go.")
    dataset = WindowDataset(
        read_trajectories(folder), prompts, Windows(), FrameReader(8), wording=wording, inflection_weight=3.2
    )
    symbols = prompts.action_ids()
    found = []
    for index in range(2):
        sample = Mixture([dataset])[0, index]
        assert sample.weights is not None
        pairs = list(zip(sample.labels, sample.weights, strict=True))
        found += [weight for label, weight in pairs if label in symbols]
        assert {weight for label, weight in pairs if label not in symbols} == {1.0}
    changes = {0, 29, 31, 32, 33, 39}  # records begin with a placeholder; STOP ends the walk
    assert found == [3.2 if step in changes else 1.0 for step in range(40)]
    assert len(collate([Mixture([dataset])[0, 0], Mixture([dataset])[0, 1]])["weights"]) == 2
    assert Mixture([made(folder)])[0, 0].weights is None


@pytest.mark.parametrize("wording", ["published", "evaluation"])
def test_strays_are_read_and_not_learned(tmp_path: Path, wording: Wording) -> None:
    folder = make_folder(tmp_path / "set", [40])
    plain = read_trajectories(folder)
    records = json.loads((folder / "annotations.json").read_text())
    records[0]["strays"] = [1, 5, 6, 34]
    (folder / "annotations.json").write_text(json.dumps(records))
    prompts = actions_apart(tmp_path, "Go.")
    symbols = prompts.action_ids()
    step = 0
    for index in range(2):
        whole, partly = (
            WindowDataset(each, prompts, Windows(), FrameReader(8), wording=wording).sample(
                index, random.Random(0)
            )
            for each in (plain, read_trajectories(folder))
        )
        assert partly.input_ids == whole.input_ids
        assert partly.weights is None
        for before, after in zip(whole.labels, partly.labels, strict=True):
            assert after == (IGNORED if before in symbols and step in (0, 4, 5, 33) else before)
            step += before in symbols
    assert step == 40


@pytest.mark.parametrize("strays", [[0], [40], ["1"], 3])
def test_strays_that_cannot_be(tmp_path: Path, strays: object) -> None:
    folder = make_folder(tmp_path, [40])
    records = json.loads((folder / "annotations.json").read_text())
    records[0]["strays"] = strays
    (folder / "annotations.json").write_text(json.dumps(records))
    with pytest.raises(UsageError, match="record 0: field 'strays': expected positions in actions, from 1 on"):
        read_trajectories(folder)


def test_inflection_weights_need_one_token_per_action(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not write every action as one token"):
        made(make_folder(tmp_path, [40]), inflection_weight=3.2)


def test_kept_frames_are_those_of_the_files(tmp_path: Path) -> None:
    """They are decoded once, whichever windows are read afterwards, and those of other files are others."""
    folder = make_folder(tmp_path / "set", [40, 33], first=1)
    walks = read_trajectories(folder)
    items = [walk.frames() for walk in walks]
    reader = FrameReader(8).keeping(tmp_path / "kept", folder / "annotations.json", items)
    dataset = WindowDataset(walks, Prompts(Letters()), Windows(), reader)
    wanted = [Mixture([made(folder)])[0, i].images for i in range(len(dataset))]
    for path in {path for item in items for path in item[1:]}:
        path.write_bytes(b"")
    again = FrameReader(8).keeping(tmp_path / "kept", folder / "annotations.json", items)
    for kept in (reader, again):
        dataset = WindowDataset(walks, Prompts(Letters()), Windows(), kept)
        assert all(torch.equal(Mixture([dataset])[0, i].images, each) for i, each in enumerate(wanted))
    with pytest.raises(UsageError, match="cannot be read as an image"):
        FrameReader(4).keeping(tmp_path / "kept", folder / "annotations.json", items)
    (file,) = (tmp_path / "kept").glob("*.frames")
    assert file.name not in Path("/proc/self/maps").read_text()  # or its pages would count as memory of its own
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(UsageError, match="holds fewer than 73 frames; delete it"):
        [Mixture([dataset])[0, i] for i in range(len(dataset))]
    file.write_bytes(whole)
    items[1][0].touch()  # collected anew: what was kept is not what is there
    with pytest.raises(UsageError, match="cannot be read as an image"):
        FrameReader(8).keeping(tmp_path / "kept", folder / "annotations.json", items)
    with pytest.raises(UsageError, match=r"--packed .*cannot be written"):
        FrameReader(8).keeping(folder / "annotations.json", folder / "annotations.json", items)


def test_frames_that_differ_every_time_are_not_kept() -> None:
    options = {"checkpoint": Path("c"), "out": Path("o"), "trajectories": Path("t"), "packed": Path("p")}
    with pytest.raises(UsageError, match=r"--packed: .*give --no-augment too"):
        StreamVLNTraining(**options).check()
    with pytest.raises(UsageError, match=r"--packed: .*leave --feature-cache out"):
        StreamVLNTraining(
            **options, augment=False, feature_cache=Path("f"), tunable_parts=("mm_mlp_adapter",)
        ).check()


@pytest.mark.parametrize("wording", ["published", "evaluation"])
def test_labels_are_learned_where_they_differ_from_what_was_done(tmp_path: Path, wording: Wording) -> None:
    """What was done is read; weights go by changes of the labels."""
    folder = make_folder(tmp_path / "set", [40])
    plain = read_trajectories(folder)
    records = json.loads((folder / "annotations.json").read_text())
    drawn = random.Random(0)
    taught = [drawn.randrange(4) for _ in range(40)]
    records[0]["labels"] = taught
    (folder / "annotations.json").write_text(json.dumps(records))
    prompts = actions_apart(tmp_path, "Go.")
    actions = prompts.action_ids()
    learned: list[int] = []
    weights: list[float] = []
    for index in range(2):
        done, corrected = (
            WindowDataset(each, prompts, Windows(), FrameReader(8), wording=wording, inflection_weight=3.0).sample(
                index, random.Random(0)
            )
            for each in (plain, read_trajectories(folder))
        )
        assert corrected.input_ids == done.input_ids
        assert corrected.weights is not None
        places = [place for place, label in enumerate(done.labels) if label in actions]
        learned += [int(actions[corrected.labels[place]]) for place in places]
        weights += [corrected.weights[place] for place in places]
        for place in set(range(len(done.labels))) - set(places):
            assert (corrected.labels[place], corrected.weights[place]) == (done.labels[place], 1)
    assert learned == taught
    assert weights == [3 if step == 0 or taught[step] != taught[step - 1] else 1 for step in range(40)]


def test_a_walk_in_the_mirror(tmp_path: Path) -> None:
    """The same chance shows it again; words, turns and what is to be done change sides, and so do frames."""
    folder = make_folder(tmp_path / "set", [12])
    records = json.loads((folder / "annotations.json").read_text())
    records[0]["instructions"] = ["Turn left at the LEFT door, then right. Leftovers stay."]
    records[0]["labels"] = [2, 3, 1, 0] * 3
    (folder / "annotations.json").write_text(json.dumps(records))
    prompts = actions_apart(tmp_path, "Turn left right.")
    walk = read_trajectories(folder)[0]
    seen = mirrored_walk(walk)
    assert seen.instructions == ("Turn right at the RIGHT door, then left. Leftovers stay.",)
    sides = {2: 3, 3: 2}
    assert seen.actions == tuple(sides.get(action, action) for action in walk.actions)
    assert seen.labels == tuple(sides.get(action, action) for action in walk.labels)
    assert mirrored_walk(seen) == walk

    plain, mirrored = (WindowDataset([each], prompts, Windows(), FrameReader(8)) for each in (walk, seen))
    always, never = (MirrorSamples(plain, mirrored, chance) for chance in (1.0, 0.0))
    assert len(always) == len(plain)
    for made, wanted, flipped in ((always, mirrored, True), (never, plain, False)):
        drawn = random.Random(3)
        drawn.random()
        same = wanted.sample(0, drawn)
        sample = made.sample(0, random.Random(3))
        assert (sample.input_ids, sample.labels) == (same.input_ids, same.labels)
        assert isinstance(same.images, torch.Tensor)
        assert isinstance(sample.images, torch.Tensor)
        assert torch.equal(sample.images, same.images.flip(3) if flipped else same.images)
    half = MirrorSamples(plain, mirrored, 0.5)
    texts = [tuple(half.sample(0, random.Random(seed)).input_ids) for seed in range(40)]
    assert 5 < sum(ids == tuple(always.sample(0, random.Random(i)).input_ids) for i, ids in enumerate(texts)) < 35


def test_questions_in_the_mirror() -> None:
    asked = Conversation(
        (Path("a.jpg"),), (("<image>\nFace the door on your left.", "←←"), ("Which?", "the right one"))
    )
    seen = mirrored_conversation(asked)
    assert seen.images == asked.images
    assert seen.turns == (("<image>\nFace the door on your right.", "→→"), ("Which?", "the left one"))
