from __future__ import annotations

import json
import pickle
import random
import re
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from agents.common.decoders.placeholders import IGNORED, IMAGE
from agents.common.decoders.windows import Windows
from agents.common.packing.frames import frame_key
from agents.common.sets.conversations import Conversation, read_conversations
from agents.common.sets.trajectories import read_trajectories
from agents.common.sight.reader import FrameReader
from agents.common.towers.siglip import network_input, resize
from agents.streamvln.agent import SYSTEM, Prompts
from agents.streamvln.samples import ConversationDataset, WindowDataset, collate
from tests.agents.streamvln.test_prompt import Letters
from tests.agents.streamvln.test_samples import make_folder
from vlnbench.data.sets import CONVERSATIONS
from vlnbench.errors import UsageError
from vlnbench.training.data import Mixture

SIZE = 8
MARKS = "<|im_start|>{}\n{}<|im_end|>\n"


def said(question: str, answer: str) -> list[dict[str, str]]:
    return [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]


def write_set(folder: Path, **changes: Any) -> Path:
    """A set of two conversations, about one image and about two; `changes` are fields of the second."""
    (folder / "images").mkdir(parents=True)
    for i in range(3):
        noise = np.random.default_rng(i).integers(0, 256, (6, 10, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / "images" / f"{i}.jpg")
    two = {
        "id": "b",
        "image": ["images/1.jpg", "images/2.jpg"],
        "conversations": said("<image>\n<image>\nSame?", "no"),
    }
    turns = [*said("<image>\nWhat do you see?", "red ball"), *said("Face it.", "←←")]
    records = [{"id": "a", "image": "images/0.jpg", "conversations": turns}, two | changes]
    (folder / "conversations.json").write_text(json.dumps(records), encoding="utf-8")
    return folder


def dataset(folder: Path, *, reader: FrameReader | None = None, **options: Any) -> ConversationDataset:
    reader = reader or FrameReader(SIZE)
    return ConversationDataset(read_conversations(folder), Prompts(Letters()), reader, **options)


def shown(ids: list[int]) -> str:
    """Token ids as text; # is an image, _ a label that is ignored."""
    return "".join({IMAGE: "#", IGNORED: "_"}.get(id_) or chr(id_) for id_ in ids)


def test_records_are_llavas(tmp_path: Path) -> None:
    first, second = read_conversations(write_set(tmp_path))
    images = tmp_path / "images"
    assert first == Conversation(
        (images / "0.jpg",), (("<image>\nWhat do you see?", "red ball"), ("Face it.", "←←"))
    )
    assert second.images == (images / "1.jpg", images / "2.jpg")
    assert second.length == (2, len("<image>\n<image>\nSame?no"))


def test_the_published_wording_supervises_answers_and_the_marks_of_every_block(tmp_path: Path) -> None:
    sample = dataset(write_set(tmp_path)).sample(0, random.Random(0))
    blocks = [
        ("system", SYSTEM),
        ("user", "#\nWhat do you see?"),
        ("assistant", "red ball"),
        ("user", "Face it."),
        ("assistant", "←←"),
    ]
    assert shown(sample.input_ids) == "".join(MARKS.format(*block) for block in blocks)
    marks = set("<|im_start|><|im_end|>\n")
    expected = "".join(
        letter if role == "assistant" or letter in marks else "_"
        for role, text in blocks
        for letter in MARKS.format(role, text)
    )
    assert shown(sample.labels) == expected


def test_the_evaluations_wording_answers_after_an_empty_block(tmp_path: Path) -> None:
    sample = dataset(write_set(tmp_path), wording="evaluation").sample(0, random.Random(0))
    opening = MARKS.format("system", SYSTEM) + MARKS.format("user", "#\nWhat do you see?")
    empty = "<|im_start|>assistant\n<|im_end|>\n"
    answers = ["<|im_start|>assistant\nred ball<|im_end|>", "<|im_start|>assistant\n←←<|im_end|>"]
    following = "\n" + MARKS.format("user", "Face it.")
    assert shown(sample.input_ids) == opening + empty + answers[0] + following + empty + answers[1]
    blank = ["_" * len(opening + empty), "_" * len(following + empty)]
    assert shown(sample.labels) == blank[0] + answers[0] + blank[1] + answers[1]


def test_images_are_in_the_order_of_their_tags(tmp_path: Path) -> None:
    folder = write_set(tmp_path)
    sample = dataset(folder).sample(1, random.Random(0))
    assert (sample.input_ids.count(IMAGE), sample.n_memory) == (2, 0)
    frames = [resize(Image.open(folder / "images" / f"{i}.jpg"), SIZE) for i in (1, 2)]
    assert torch.equal(sample.images, network_input(frames))
    jittered = [
        dataset(folder, reader=FrameReader(SIZE, augmented=True)).sample(1, random.Random(seed)).images
        for seed in (1, 1, 2)
    ]
    assert torch.equal(jittered[0], jittered[1])
    assert not torch.equal(jittered[0], jittered[2])


def test_known_features_stand_for_images(tmp_path: Path) -> None:
    folder = write_set(tmp_path)
    known = {frame_key((folder / "images" / "1.jpg").read_bytes()): torch.ones(4, 5)}
    images = dataset(folder, reader=FrameReader(SIZE, known=known.get)).sample(1, random.Random(0)).images
    assert [(frame.features is None, frame.pixels is None) for frame in images] == [(False, True), (True, False)]


def test_a_mixture_has_the_samples_of_its_parts_under_one_numbering(tmp_path: Path) -> None:
    prompts = Prompts(Letters())
    trajectories = read_trajectories(make_folder(tmp_path / "walks", [5, 40]))
    windows = WindowDataset(trajectories, prompts, Windows(), FrameReader(SIZE))
    questions = dataset(write_set(tmp_path / "questions"))
    mixture: Mixture = pickle.loads(pickle.dumps(Mixture([windows, questions, windows], seed=3)))
    assert len(mixture) == 3 + 2 + 3
    for index, part, own in ((0, windows, 0), (3, questions, 0), (4, questions, 1), (7, windows, 2)):
        drawn = part.sample(own, random.Random(f"3/1/{index}"))
        assert mixture[1, index].input_ids == drawn.input_ids
    batch = collate([mixture[0, 0], mixture[0, 4]])
    assert [len(images) for images in batch["images"]] == [2, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": None}, "record 1: field 'image': expected the path of an image or a list of paths"),
        ({"image": []}, "record 1: field 'image': expected"),
        ({"image": ["images/1.jpg", 2]}, "record 1: field 'image': expected"),
        (
            {"image": "images/1.jpg"},
            "record 1: field 'conversations': expected <image> in the first turn once for",
        ),
        ({"conversations": said("<image>Same?", "no")}, "record 1: field 'conversations': expected <image>"),
        (
            {"conversations": said("<image><image>", "<image>")},
            "record 1: field 'conversations': expected <image>",
        ),
        ({"conversations": []}, "record 1: field 'conversations': expected turns of human and gpt"),
        (
            {"conversations": said("a", "b")[:1]},
            "record 1: field 'conversations': expected turns of human and gpt",
        ),
        ({"conversations": said("a", "b")[::-1]}, "record 1: field 'conversations[0]': expected an object with"),
        ({"conversations": said("a", 3)}, "record 1: field 'conversations[1]': expected an object with"),  # type: ignore[arg-type]
        ({"image": ["images/1.jpg", "images/9.jpg"]}, "conversations.json: 1 of 3 images are missing, first"),
    ],
)
def test_bad_records_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_conversations(write_set(tmp_path, **changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spelled", ["../other/images/2.jpg", "images/../../other/images/2.jpg", "/abs"])
def test_images_outside_the_set_are_refused_although_they_are_there(tmp_path: Path, spelled: str) -> None:
    other = write_set(tmp_path / "other")
    name = spelled.replace("/abs", str(other / "images" / "2.jpg"))
    folder = write_set(tmp_path / "set", image=["images/1.jpg", name])
    with pytest.raises(UsageError) as caught:
        read_conversations(folder)
    where = f"{folder / 'conversations.json'}: record 1: field 'image'"
    expected = "a path below the folder of the set, relative and without '..'"
    assert str(caught.value).startswith(f"{where}: expected {expected}, found '{name[:40]}")  # long ones are cut


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "conversations.json: not there"),
        ("[", "cannot be read as JSON"),
        ("[]", "expected a list of conversations"),
        ("[1]", "record 0: expected an object"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "conversations.json").write_text(content)
    with pytest.raises(UsageError, match=message) as caught:
        read_conversations(tmp_path)
    assert "\n" not in str(caught.value)


def test_kept_images_are_those_of_the_files(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set")
    items = [each.images for each in read_conversations(folder)]
    kept = FrameReader(SIZE).keeping(tmp_path / "kept", folder / CONVERSATIONS, items)
    for index in range(len(items)):
        wanted = dataset(folder).sample(index, random.Random(0)).images
        assert torch.equal(dataset(folder, reader=kept).sample(index, random.Random(0)).images, wanted)


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_questions_are_drawn_and_the_first_shows_the_image(tmp_path: Path, at_once: int) -> None:
    turns = [*said("<image>\nA?", "a"), *said("B?", "b"), *said("C?", "c")]
    made = dataset(write_set(tmp_path, image="images/1.jpg", conversations=turns), at_once=at_once)
    texts = {shown(made.sample(1, random.Random(seed)).input_ids) for seed in range(60)}
    asked = {tuple(re.findall(r"user\n(#?\n?\w\?)", text)) for text in texts}
    orders = {tuple(each) for each in permutations("ABC", min(at_once, 3))}
    assert asked == {(f"#\n{first}?", *(f"{other}?" for other in others)) for first, *others in orders}
    for text in texts:
        told = re.findall(r"(\w)\?.*?assistant\n(\w)<", text, re.DOTALL)
        assert told
        assert all(question.lower() == answer for question, answer in told)
    (one, two) = read_conversations(tmp_path)
    assert two.length_of(at_once) == (1, len("<image>\nA?aB?bC?c") * min(at_once, 3) // 3)
    assert one.length_of(None) == one.length


def test_images_of_a_drawn_question_keep_their_order(tmp_path: Path) -> None:
    made = dataset(write_set(tmp_path, conversations=said("<image> and <image>: same?", "no")), at_once=1)
    assert "# and #: same?" in shown(made.sample(1, random.Random(0)).input_ids)
