"""What pins Uni-NaVid's definition, by small cases: tokenizer, tower, memory, question, words, folders, sets."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.nn import functional

from agents.common.checkpoints.sentencepiece import llama_tokenizer
from agents.common.decoders.placeholders import IGNORED, IMAGE, MEMORY, lay_out
from agents.common.decoders.sampling import Draws, Sampler
from agents.common.memory import Memory
from agents.common.remembering import Question
from agents.common.sets.trajectories import Trajectory
from agents.common.sight.videos import drawn_frames, jittered
from agents.common.towers.eva import EvaTower, crop, is_surplus, network_input, pooled, squared
from agents.common.towers.siglip import VisionGeometry
from agents.uninavid import network
from agents.uninavid.agent import EpisodeLoop, Prompts, actions_of, expects
from agents.uninavid.network import TOWER, TOWER_FILE
from agents.uninavid.options import UniNaVidOptions
from agents.uninavid.samples import answer, read_set
from tests.fakes import make_episode
from vlnbench.data.benchmarks import BENCHMARKS
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions, Observation

STOP, FORWARD, LEFT, RIGHT = Action.STOP, Action.MOVE_FORWARD, Action.TURN_LEFT, Action.TURN_RIGHT


def field(number: int, value: bytes | int) -> bytes:
    """Of a protobuf message; numbers below 128."""
    if isinstance(value, int):
        return bytes([number * 8, value]) if number < 16 else bytes([number * 8 % 128 + 128, number // 16, value])
    return bytes([number * 8 + 2, len(value)]) + value


def llama_model(folder: Path, kind: int = 2) -> Path:
    """A tokenizer.model with few pieces, the last ones merged first; kind: of the model, 2 is BPE."""
    special = [("<unk>", 2), ("<s>", 3), ("</s>", 3), *((f"<0x{byte:02X}>", 6) for byte in range(256))]
    pieces = [*special, *((text, 1) for text in ("▁", "a", "b", "ab", "▁a"))]
    content = b""
    for number, (text, sort) in enumerate(pieces):
        score = struct.pack("<f", float(number - len(pieces)) if text == "▁a" else -float(number))
        content += field(1, field(1, text.encode()) + bytes([21]) + score + field(3, sort))
    content += field(2, field(3, kind) + field(35, 1)) + field(3, field(3, 1) + field(4, 0))
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.model").write_bytes(content)
    (folder / "added_tokens.json").write_text(json.dumps({"<mark>": len(pieces)}))
    return folder


def test_sentencepiece_models_are_read_without_sentencepiece(tmp_path: Path) -> None:
    """▁a scores best, so that what begins a word is joined first; bytes stand for what has no piece."""
    tokenizer = llama_tokenizer(llama_model(tmp_path / "a"))
    blank, a, b, ab, blank_a = range(259, 264)
    assert tokenizer.encode("ab ab").ids == [1, blank_a, b, blank_a, b]
    assert tokenizer.encode("\nab").ids == [1, blank, 3 + 10, ab]
    assert tokenizer.encode("é", add_special_tokens=False).ids == [blank, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.encode("a<mark>b</s>a").ids == [1, blank_a, 264, blank, b, 2, blank_a]
    assert tokenizer.decode([blank_a, b, 2, blank, 3 + 0xC3, 3 + 0xA9, a]) == "ab éa"


def test_other_models_of_sentencepiece_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected LLaMA's kind of tokenizer"):
        llama_tokenizer(llama_model(tmp_path / "a", kind=1))
    folder = llama_model(tmp_path / "b")
    whole = (folder / "tokenizer.model").read_bytes()
    for content in (b"", whole[:50], b"\xff" * 20, whole[:-10]):
        (folder / "tokenizer.model").write_bytes(content)
        with pytest.raises(UsageError, match="damaged"):
            llama_tokenizer(folder)
    (folder / "tokenizer.model").write_bytes(whole)
    (folder / "added_tokens.json").write_text('{"<mark>": 7}')
    with pytest.raises(UsageError, match="numbered from 264 on"):
        llama_tokenizer(folder)


def test_the_tower_is_eva_s() -> None:
    """Keys have no bias, queries do; GELU is exact; of three blocks two count, and no norm behind them."""
    sizes = VisionGeometry(8, 12, 3, 2, 4, 2, hidden_act="gelu")
    torch.manual_seed(0)
    tower = EvaTower(sizes)
    for each in tower.parameters():
        torch.nn.init.normal_(each)
    pixels = torch.randn(1, 3, 4, 4)
    state = functional.conv2d(pixels, *tower.patch_embed["proj"].parameters(), stride=2).flatten(2)[0].T
    state = torch.cat([tower.cls_token[0], state]) + tower.pos_embed[0]
    for block in tower.blocks:
        parts: Any = block
        seen, mixed = functional.layer_norm(state, (8,), parts.norm1.weight, parts.norm1.bias, 1e-6), []
        queries, keys, values = (seen @ each.T for each in parts.attn.qkv.weight.chunk(3))
        queries, values = queries + parts.attn.q_bias, values + parts.attn.v_bias
        for head in (slice(0, 4), slice(4, 8)):
            mixed.append(torch.softmax(queries[:, head] @ keys[:, head].T / 2, -1) @ values[:, head])
        state = state + parts.attn.proj(torch.cat(mixed, -1))
        seen = functional.layer_norm(state, (8,), parts.norm2.weight, parts.norm2.bias, 1e-6)
        inner = parts.mlp["fc1"](seen)
        state = state + parts.mlp["fc2"](inner * (1 + torch.erf(inner / 2**0.5)) / 2)
    torch.testing.assert_close(tower(pixels)[0], state, atol=1e-4, rtol=1e-4)
    surplus = ["blocks.2.norm1.weight", "norm.weight", "fc_norm.bias", "head.weight"]
    assert all(is_surplus(name, sizes) for name in surplus)
    assert not any(is_surplus(name, sizes) for name, _ in tower.named_parameters())


def test_patches_are_averaged_in_squares_row_by_row() -> None:
    features = torch.cat([torch.full((1, 1, 1), 99.0), torch.arange(16.0).view(1, 16, 1)], dim=1)
    assert pooled(features, 2).flatten().tolist() == [2.5, 4.5, 10.5, 12.5]
    assert pooled(features, 4).flatten().tolist() == list(range(16))


def test_frames_lose_their_sides_and_pictures_nothing() -> None:
    rgb = np.zeros((4, 8, 3), np.uint8)
    rgb[:, 2:6] = 255
    assert (crop(rgb, 4) == 255).all()
    assert crop(np.zeros((480, 640, 3), np.uint8), 224).shape == (224, 224, 3)
    found = network_input([crop(rgb, 4)])
    wanted = [(1 - 0.48145466) / 0.26862954, (1 - 0.4578275) / 0.26130258, (1 - 0.40821073) / 0.27577711]
    assert found[0, :, 0, 0].tolist() == pytest.approx(wanted)
    square = squared(rgb)
    assert square.shape == (8, 8, 3)
    assert square[0, 0].tolist() == [122, 116, 104]
    assert (square[2:6] == rgb).all()


def test_older_frames_share_a_token_with_alike_ones() -> None:
    """Of the frame that leaves the window, the mean; a token that stands for two weighs double."""
    memory = Memory(window=2, similarity=0.9)
    east, north = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    for frame in (torch.cat([3 * east, east]), east, 4 * east, north, north, north):
        memory.add(frame)
    assert memory.weights == [3, 1]
    assert [token.tolist() for token in memory.long] == [[pytest.approx(7 / 3), 0], [0, 1]]  # (2 + 1 + 4) / 3
    assert [len(chunk) for chunk in memory.chunks()] == [1, 1, 1, 1]
    exact = Memory(window=1, similarity=0.0)
    for frame in (east, north, east):
        exact.add(frame)
    assert exact.weights == [1, 1], "as alike as that is not enough"


def test_chunks_stand_between_separators_and_the_frame_behind() -> None:
    chunks = [torch.full((1, 2), 1.0), torch.full((2, 2), 2.0)]
    ids, rows, labels = lay_out([5, MEMORY, 6, IMAGE, 7], chunks, torch.full((3, 2), 3.0), 9, [1, 2, 3, 4, 5])
    one = IMAGE
    assert ids == [5, one, 9, one, one, 6, one, one, one, 7]
    assert rows[:, 0].tolist() == [1, 2, 2, 3, 3, 3]
    assert labels == [1, *[IGNORED] * 4, 3, *[IGNORED] * 3, 5]


class Letters:
    """A tokenizer of code points, of which marks are one each."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        for number, mark in enumerate(network.MARKS):
            text = text.replace(mark, chr(10_000 + number))
        return [1] * add_special_tokens + [ord(letter) for letter in text]

    def decode(self, token_ids: Sequence[int], **how: bool) -> str:
        return "".join(map(chr, token_ids))

    def __len__(self) -> int:
        return 1 << 20


def shown(ids: Sequence[int]) -> str:
    signs = {
        IMAGE: "I",
        MEMORY: "M",
        1: "^",
        **{10_000 + number: mark for number, mark in enumerate(network.MARKS)},
    }
    return "".join(signs.get(id_) or chr(id_) for id_ in ids)


SAID = (
    "^A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
    "detailed, and polite answers to the user's questions. USER: "
)
QUESTION = (
    "<video_special><image_sep>M</video_special><image_special>I</image_special>[Navigation]\nImagine you are a "
    "robot programmed for navigation tasks. You have been given a video of historical observations and an image "
    "of the current observation . Your assigned task is: 'Go on. \n'. Analyze this series of images to determine "
    "your next four actions. The predicted action should be one of the following: forward, left, right, or stop. "
    "ASSISTANT:"
)


def test_the_question_is_the_published_one() -> None:
    """A tag of an instruction is lost, and blanks stay."""
    assert shown(Prompts(Letters()).question("Go on. <image>\n")) == SAID + QUESTION


def test_answers_alone_are_learned_in_every_turn() -> None:
    turns = [("<image>\nhow many ?", "two"), ("why ?\n<image>", "so it is")]
    ids, labels = Prompts(Letters()).lesson(turns, video=False)
    picture = "<image_special>I</image_special>"
    asked = f"{SAID}{picture}\nhow many ? ASSISTANT: two</s>USER: why ?\n{picture} ASSISTANT: so it is</s>"
    assert shown(ids) == asked
    assert "".join(chr(label) for label in labels if label != IGNORED) == " two</s> so it is</s>"
    assert all(label in (id_, IGNORED) for id_, label in zip(ids, labels, strict=True))


@pytest.mark.parametrize(
    ("text", "skip", "wanted"),
    [
        ("left forward right stop", False, [LEFT, FORWARD]),
        ("stop", False, [STOP]),
        ("forward stop what is this", False, [FORWARD, STOP]),
        ("forward wait", False, None),
        ("forward  left", False, None),
        ("Forward left", False, None),
        ("", False, None),
        ("go forward, then left now right", True, [LEFT, RIGHT]),
        ("a red room", True, None),
    ],
)
def test_the_first_words_are_read(text: str, skip: bool, wanted: list[Action] | None) -> None:
    assert actions_of(text, 2, skip) == wanted


class Says:
    """Answers in code points; writes down how many frames were new."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.frames = list(texts), list[int]()

    def begin(self, slot: int, seed: int) -> None: ...

    def run(self, questions: Sequence[Question]) -> list[list[int]]:
        self.frames += [len(question.frames) for question in questions]
        return [[ord(letter) for letter in self.texts.pop(0)] for _ in questions]


def walked(says: Says, pictures: Sequence[int], rxr: bool = False, **more: Any) -> list[Action]:
    """What is done where frames are of these gray values."""
    loop = EpisodeLoop(Prompts(Letters()), says, 8, UniNaVidOptions(**more))
    loop.reset(0, replace(make_episode(0), instruction_id="1" if rxr else None), 0)
    return [
        loop.act({0: Observation("", step, rgb=np.full((8, 8, 3), value % 256, np.uint8))})[0]
        for step, value in enumerate(pictures)
    ]


def test_two_of_four_actions_are_done_and_their_frames_come_together() -> None:
    says = Says("left forward right stop", "right", "stop left")
    assert walked(says, range(4)) == [LEFT, FORWARD, RIGHT, STOP]
    assert says.frames == [1, 2, 1]


def test_frames_of_another_walk_are_those_of_the_step() -> None:
    class Other:
        steps: ClassVar[list[int]] = []

        def rgb(self, own: Any, step: int, seed: int) -> Any:
            self.steps.append(step)
            return own

    loop = EpisodeLoop(Prompts(Letters()), Says("left left", "left left"), 8, UniNaVidOptions())
    loop._shown = Other()  # type: ignore[assignment]
    loop.reset(0, make_episode(0), 0)
    for step in range(4):
        loop.act({0: Observation("", step, rgb=np.zeros((8, 8, 3), np.uint8))})
    assert Other.steps == [0, 1, 2, 3]


def test_an_episode_ends_that_gets_nowhere_and_one_that_is_too_long() -> None:
    """Turns get nowhere, nor steps after which all looks the same; the 27th action is the first that is forced."""
    assert walked(Says(*["left left"] * 15), range(28))[25:] == [LEFT, STOP, STOP]
    assert walked(Says(*["forward left"] * 3), [1, 2, 2, 3, 3, 4], still_limit=2) == [FORWARD, LEFT] * 3
    assert walked(Says(*["forward left"] * 4), [1, 1, 1, 1, 1], still_limit=2)[2:] == [FORWARD, STOP, STOP]
    assert walked(Says(*["left left"] * 15), range(30), still_limit=0)[-1] == LEFT
    assert walked(Says(*["forward left"] * 3), range(4), step_limit=2) == [FORWARD, LEFT, FORWARD, STOP]
    steps = range(402)
    assert [walked(Says(*["forward left"] * 201), steps, rxr=each)[-1] for each in (False, True)] == [STOP, LEFT]


def test_the_likeliest_few_share_the_probability() -> None:
    """Of 0.4, 0.3, 0.3 the first two; more than half of their sum is the first's, which is all of top_p then."""
    logits = torch.tensor([[[0.4, 0.3, 0.3]]]).log()

    def drawn(**more: Any) -> set[int]:
        sampler, found = Sampler(1.0, **more), set()
        for seed in range(60):
            sampler.begin(0, str(seed))
            found.add(sampler.draw([Draws(0, 0, 1)], logits)[0][0])
        return found

    assert drawn() == {0, 1, 2}
    assert drawn(top_k=2) == {0, 1}
    assert drawn(top_p=0.5, top_k=2) == {0}
    assert drawn(top_p=0.5) == {0, 1}


def test_frames_are_drawn_and_jittered_as_published() -> None:
    """Never without the last; a factor of colors is of value, of distance to the mean picture, or to gray."""
    for seed in range(50):
        chosen = drawn_frames(12, random.Random(seed))
        assert chosen == sorted(chosen)
        assert chosen[-1] == 11
        assert 10 <= len(set(chosen)) <= 12

    class Factor(np.random.RandomState):
        def __init__(self, kind: int) -> None:
            self.kind, self.asked = kind, -1

        def rand(self, *size: Any) -> Any:
            self.asked += 1
            return 0.0 if self.asked == self.kind else 1.0

        def uniform(self, *bounds: Any, **more: Any) -> Any:
            return 1.2

    frame = np.array([[[101, 201, 250], [50, 60, 71]]], np.uint8)
    assert jittered(frame, Factor(0)).tolist() == [[[121, 241, 255], [60, 72, 85]]]
    assert jittered(frame, Factor(1)).tolist() == [[[106, 215, 255], [44, 45, 53]]]
    assert jittered(frame, Factor(2)).tolist() == [[[84, 204, 255], [47, 59, 73]]]
    assert jittered(frame, Factor(3)) is frame


def walk(*actions: Action, **more: Any) -> Trajectory:
    return Trajectory(Path("frames"), ("Go.",), actions, **more)


def test_four_actions_are_answered() -> None:
    assert answer(walk(FORWARD, LEFT, RIGHT, FORWARD, STOP), 0) == "forward left right forward"
    assert answer(walk(FORWARD, LEFT, STOP), 1) == "left stop stop stop"
    taught = walk(FORWARD, LEFT, STOP, labels=(FORWARD, RIGHT, STOP))
    assert answer(taught, 0) == "forward right", "what comes after another action is no answer"
    assert answer(walk(FORWARD, LEFT, STOP, strays=frozenset({1})), 0) == "forward"


def broken(base: Path, folder: Path, **changes: Any) -> Path:
    shutil.copytree(base, folder)
    raw = json.loads((folder / "config.json").read_text())
    raw |= changes
    (folder / "config.json").write_text(json.dumps({name: each for name, each in raw.items() if each is not None}))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architectures: expected .*a Uni-NaVid checkpoint"),
        ({"compress_type": "mean"}, 'compress_type: expected "grid:2" or "grid:4"'),
        ({"mm_projector_type": "linear"}, "mm_projector_type"),
        ({"mm_use_im_start_end": True}, "mm_use_im_start_end"),
        ({"vocab_size": 50}, "weights are not those"),
        (
            {"vision_config": None},
            "mm_hidden_size: expected 1408, as of EVA's ViT-g, or a vision_config beside it",
        ),
        (
            {"vision_config": None, "mm_hidden_size": 1408},
            "no eva_vit_g.pth in it or beside it: give --vision-tower",
        ),
    ],
)
def test_folders_that_are_others_are_refused_in_a_line(
    base: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        network.load(broken(base, tmp_path / "folder", **changes))
    assert "\n" not in str(raised.value)


def test_a_tokenizer_without_the_marks_is_refused(base: Path, tmp_path: Path) -> None:
    folder = broken(base, tmp_path / "folder")
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("[Navigation]", "[Elsewhere]"))
    with pytest.raises(UsageError, match=r"has no token '\[Navigation\]'"):
        network.load_tokenizer(folder)
    with pytest.raises(UsageError, match=r"no such file; expected eva_vit_g\.pth"):
        network.load(base, vision_tower=tmp_path / "nothing.pth")


def test_the_tower_s_own_file_is_read_and_not_the_folder_s_copy(base: Path, tmp_path: Path) -> None:
    """Also where it has one block more, a norm and a head; pickles of the folder only where they are trusted."""
    model = network.load(base)
    state = {name: each.detach() + 1 for name, each in model.eyes.named_parameters()}
    more = {f"blocks.2.{name}": each for name, each in model.eyes.blocks[0].named_parameters()}
    torch.save({**state, **more, "norm.weight": torch.ones(3), "head.bias": torch.ones(2)}, tmp_path / TOWER_FILE)
    (tmp_path / "vid").mkdir()
    folder = broken(base, tmp_path / "vid" / "folder")
    loaded = network.load(folder, vision_tower=tmp_path / TOWER_FILE)
    for name, each in loaded.eyes.named_parameters():
        assert torch.equal(each, state[name]), name
    assert torch.equal(network.load(folder).eyes.cls_token, model.eyes.cls_token), "its own, as it was saved here"
    tensors = {name: each.detach() for name, each in model.named_parameters()}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match="--trust-pickle"):
        network.load(folder)
    again = network.load(folder, trust_pickle=True)
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    assert all(name.startswith(TOWER) for name, _ in again.named_parameters() if "vision" in name)


def test_published_cameras_are_expected_but_of_small_networks() -> None:
    known = {"camera_height_m": 1.25, "forward_m": 0.25}
    assert expects(224) == Conventions(width=640, height=480, hfov=120.0, turn_deg=30.0, **known)
    assert expects(96) == Conventions(**known)
    fitting = [each.name for each in BENCHMARKS.values() if not expects(224).conflicts(each.body)]
    assert fitting == ["r2r-uninavid", "rxr-uninavid"]


def test_records_are_checked_and_lost_files_counted(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "why ?"}, {"from": "gpt", "value": "so"}]
    (tmp_path / "a.png").write_bytes(b"")

    def write(*records: Any) -> None:
        (tmp_path / "conversations.json").write_text(json.dumps(records))

    write({"id": "1", "image": "a.png", "conversations": turns}, {"video": "b.mp4", "conversations": turns})
    found = read_set(tmp_path, every=2)
    assert found.windows == 1
    assert len(found.left_out) == 1
    assert f": 1 records lack files and are left out, first {tmp_path}/b.mp4; extract" in found.left_out[0]
    assert list(found.texts()) == ["why ?", "so"]
    for record, message in (
        (7, "record 0: expected an object"),
        ({"image": "../a.png", "conversations": turns}, "field 'image': expected a path below the folder"),
        ({"conversations": turns[:1]}, "field 'conversations'"),
        ({"conversations": turns[::-1]}, r"field 'conversations\[0\]': expected .*human"),
        ({"video": "b.mp4", "conversations": turns}, "1 records lack files and are left out, first"),
        ({"video": "b.pkl", "conversations": turns}, "field 'video': expected a video: features in pickle files"),
    ):
        write(record)
        with pytest.raises(UsageError, match=message):
            read_set(tmp_path, every=2)
