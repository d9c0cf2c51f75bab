"""What pins NaVILA's definition, by small cases: frames, question, sentences, projector, folders, sets."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from agents.common.checkpoints.files import read_json
from agents.common.decoders.placeholders import IGNORED, IMAGE
from agents.common.decoders.turns import Turn
from agents.common.sets.trajectories import Trajectory
from agents.common.sight.instead import GRAY, Instead
from agents.navila import network
from agents.navila.agent import BLACK, EpisodeLoop, Prompts, actions_of, chosen, expects, normalized
from agents.navila.network import BEGIN, END, Downsample, NaVILA
from agents.navila.options import NaVILAInputs, NaVILAOptions, NaVILATraining
from agents.navila.samples import QuestionDataset, read_set, runs
from tests.fakes import make_episode
from tests.training.test_families import write_walks
from vlnbench.data.benchmarks import BENCHMARKS
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions, Observation

STOP, FORWARD, LEFT, RIGHT = Action.STOP, Action.MOVE_FORWARD, Action.TURN_LEFT, Action.TURN_RIGHT


class Letters:
    """A tokenizer of code points, of which marks are one each; `begins`: whether it puts the begin there."""

    def __init__(self, begins: bool) -> None:
        self._begins = begins

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids = [ord(letter) for letter in text.replace(BEGIN, "\x01").replace(END, "\x02")]
        return [1, *ids] if add_special_tokens and self._begins else ids

    def decode(self, token_ids: Sequence[int], **how: bool) -> str:
        return "".join(chr(id_) for id_ in token_ids if id_ > 2)

    def __len__(self) -> int:
        return 1 << 20


def shown(ids: Sequence[int]) -> str:
    return "".join("#" if id_ == IMAGE else chr(id_) for id_ in ids)


@pytest.mark.parametrize(
    ("length", "wanted"),
    [
        (1, [BLACK] * 7 + [0]),
        (3, [BLACK] * 5 + [0, 1, 2]),
        (8, [0, 1, 2, 3, 4, 5, 6, 7]),
        (9, [0, 1, 2, 3, 4, 5, 6, 8]),  # 0, 8/7, 16/7, ... cut to whole numbers, then the newest
        (22, [0, 3, 6, 9, 12, 15, 18, 21]),
    ],
)
def test_eight_frames_are_shown(length: int, wanted: list[int]) -> None:
    assert chosen(length, 8) == wanted


ASKED = (
    "Imagine you are a robot programmed for navigation tasks. You have been given a video of historical "
    'observations #\n#\n, and current observation #\n. Your assigned task is: "go Left.\n" Analyze this series of '
    "images to decide your next action, which could be turning left or right by a specific degree, moving forward "
    "a certain distance, or stop if the task is completed."
)
HEADER = (
    "\x01<|start_header_id|>system<|end_header_id|>\n\nYou are a helpful language and vision assistant. You are "
    "able to understand the visual content that the user provides, and assist the user with a variety of tasks "
    "using natural language.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
)
ANSWER = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"


def test_the_question_is_the_published_one() -> None:
    """With a tokenizer that begins every text, the question begins twice; with another, what comes behind an image
    loses its first token."""
    twice = Prompts(Letters(begins=True), NaVILAInputs(), 3)
    assert shown(twice.question("go Left.\n")) == f"\x01{HEADER}{ASKED}{ANSWER}"
    once = Prompts(Letters(begins=False), NaVILAInputs(), 3)
    assert shown(once.question("go Left.\n")) == f"{HEADER}{ASKED.replace('#' + chr(10), '#')}{ANSWER}"
    with pytest.raises(ValueError, match="which stands for an image"):
        once.question("Go to <image>.")


@pytest.mark.parametrize(
    ("written", "asked", "taught"),
    [
        ("published", "go Left .\nThen stop", "Go left. Then stop"),
        ("raw", "go Left .\nThen stop", "go Left .\nThen stop"),
        ("normalized", "Go left. Then stop", "Go left. Then stop"),
    ],
)
def test_training_and_evaluation_write_instructions_as_asked_for(written: Any, asked: str, taught: str) -> None:
    prompts = Prompts(Letters(begins=True), NaVILAInputs(instructions=written), 2)
    assert f'"{asked}"' in shown(prompts.question("go Left .\nThen stop"))
    ids, labels = prompts.lesson("go Left .\nThen stop", " The next action is stop.\n")
    assert f'"{taught}"' in shown(ids)
    said = [id_ for id_ in labels if id_ != IGNORED]
    assert shown(said) == "The next action is stop.\x02"
    assert ids[-len(said) :] == said
    assert set(prompts.lesson("go", None)[1]) == {IGNORED}


def test_instructions_are_normalized_as_published() -> None:
    assert normalized("Walk OUT .\r\nturn right .  stop\tby 1 . then\nwait .") == (
        "Walk out. Turn right.  stop\tby 1. Then wait."
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The next action is move forward 75 cm.", [FORWARD] * 3),
        ("The next action is move forward 100 cm.", [FORWARD] * 4),  # a multiple of a step, however large
        ("The next action is move forward 60 cm.", [FORWARD] * 2),  # the nearest of one to three steps
        ("The next action is move forward 500000000000 cm.", [FORWARD] * 500),
        ("The next action is move forward 0 cm.", [FORWARD]),
        ("The next action is Move Forward 75 cm.", [FORWARD]),  # in any case, but not with an amount
        ("The next action is turn left 90 degrees.", [LEFT] * 6),
        ("The next action is turn left 25 degree.", [LEFT] * 2),
        ("The next action is turn right 75 cm.", [RIGHT]),
        ("It is turn right 30 degree, or is turn left 45 degree.", [LEFT] * 3),  # left is looked for first
        ("is move forward 50 cm and then Stop", [STOP]),
        ("The next action is stopping.", None),
        ("Turn left 30 degree.", None),
        ("", None),
    ],
)
def test_sentences_are_read_as_published(text: str, wanted: list[Action] | None) -> None:
    assert actions_of(text) == wanted


class Says:
    """A decoder that says what it is told to."""

    def __init__(self, *texts: str) -> None:
        self._texts, self.turns = list(texts), list[Turn]()

    def run(self, turns: Sequence[Turn]) -> list[list[int]]:
        self.turns += turns
        return [[ord(letter) for letter in self._texts.pop(0)] for _ in turns]

    def drop(self, slot: int) -> None:
        pass


def test_what_is_planned_ends_with_the_episode_and_what_cannot_be_read_is_counted() -> None:
    """The published code goes on with what is left of an episode's plan in the next one."""
    says = Says("is move forward 75 cm", "what?", "is turn left 15 degree")
    loop = EpisodeLoop(Prompts(Letters(begins=True), NaVILAInputs(), 4), says, 8)
    episode = make_episode(1)

    def act(step: int) -> Action:
        frame = np.full((16, 16, 3), 50 * (step + 1), np.uint8)
        return loop.act({0: Observation(episode.instruction, step, rgb=frame)})[0]

    loop.reset(0, episode, 0)
    assert [act(step) for step in range(4)] == [FORWARD] * 4
    assert loop.unreadable == 1
    assert loop.remarks == "1 answers could not be read and counted as MOVE_FORWARD"
    values = [float(each.mean()) for each in says.turns[1].images]
    assert values == pytest.approx([(50 * (step + 1)) / 127.5 - 1 for step in range(4)])
    loop._slots[0].queue.extend([FORWARD, FORWARD])
    loop.reset(0, episode, 0)
    assert act(0) == LEFT
    assert [float(each.mean()) for each in says.turns[2].images[:3]] == [-1.0] * 3


def test_gray_frames_are_shown_in_place_of_what_is_seen() -> None:
    says = Says("stop")
    shown = Instead(NaVILAOptions(frames="gray"))
    loop = EpisodeLoop(Prompts(Letters(begins=True), NaVILAInputs(), 2), says, 8, shown=shown)
    loop.reset(0, make_episode(1), 0)
    loop.act({0: Observation("", 0, rgb=np.full((16, 16, 3), 250, np.uint8))})
    assert [float(each.mean()) for each in says.turns[0].images] == pytest.approx([-1, GRAY / 127.5 - 1], abs=1e-6)


def test_the_projector_joins_patches_column_by_column() -> None:
    """By hand, of a grid of 3 x 3: zeros on the right and at the bottom; second is the block below the first."""
    torch.manual_seed(0)
    projector = Downsample(2, 5)
    patches = torch.randn(1, 9, 2)
    grid = functional.pad(patches.view(3, 3, 2), (0, 0, 0, 1, 0, 1))
    blocks = [
        torch.cat([grid[2 * row + i, 2 * column + j] for i in (0, 1) for j in (0, 1)])
        for column in (0, 1)
        for row in (0, 1)
    ]
    _, norm, first, _, second = projector.layers
    wanted = second(functional.gelu(first(norm(torch.stack(blocks)))))  # the exact one
    torch.testing.assert_close(projector(patches)[0], wanted)
    assert Downsample(1152, 8)(torch.zeros(1, 729, 1152)).shape == (1, 196, 8)


def test_the_tower_s_last_block_and_what_is_behind_it_do_not_count(base: Path) -> None:
    model = network.load(base)
    pixels = torch.randn(2, 3, 96, 96)
    before = model.patch_features(pixels)
    with torch.no_grad():
        for name, each in model.named_parameters():
            if name.startswith("vision_tower.vision_model.head."):
                each.zero_()
        model.tower.get_submodule("encoder.layers.2.mlp.fc1").weight.zero_()
        model.tower.get_parameter("post_layernorm.weight").zero_()
        assert torch.equal(model.patch_features(pixels), before)
        model.tower.get_submodule("encoder.layers.1.mlp.fc1").weight.zero_()
        assert not torch.equal(model.patch_features(pixels), before)


def test_fast_blocks_and_those_of_transformers_agree(base: Path) -> None:
    """Greedy answers of both, by random weights."""
    from agents.common.decoders.turns import Decoder

    tokenizer = network.load_tokenizer(base)
    ids = Prompts(tokenizer, NaVILAInputs(), 3).question("Walk past the sofa.")
    images = torch.randn(3, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    answers = []
    for attn in ("sdpa", "eager"):
        decoder = Decoder(
            network.load(base, attn=attn), network.generation(base, tokenizer), max_new_tokens=8, keeps=False
        )
        assert (decoder._fast is not None) == (attn == "sdpa")
        answers.append(decoder.run([Turn(slot, ids, images + slot, opens_window=True) for slot in range(3)]))
        assert decoder.window_length(0) == 0
    assert answers[0] == answers[1]


def test_rows_beyond_the_tokenizer_are_cut_off_and_never_said(base: Path, tmp_path: Path) -> None:
    model = network.load(base)
    rows = len(model.lm_head.weight)
    llm, tower = model.config.parts
    wide = NaVILA(network.parse_config(model.config.raw, ({**llm, "vocab_size": rows + 5}, tower), ""))
    folder = tmp_path / "wide"
    network.save(wide, folder, NaVILAInputs(), source=base)
    loaded = network.load(folder)
    assert len(loaded.lm_head.weight) == len(loaded.model.embed_tokens.weight) == rows == loaded.config.vocab_size


def test_a_head_that_was_tied_is_saved_as_its_own(base: Path, tmp_path: Path) -> None:
    """For it trains apart from the embeddings, which the original code would take for both."""
    folder = broken(base, tmp_path / "tied", "llm", tie_word_embeddings=True)
    state = load_file(path := folder / "llm/model.safetensors")
    del state["lm_head.weight"]
    save_file(state, path)
    model = network.load(folder)
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    torch.nn.init.zeros_(model.lm_head.weight)
    network.save(model, tmp_path / "saved", NaVILAInputs(), source=folder)
    loaded = network.load(tmp_path / "saved")
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    assert torch.equal(loaded.model.embed_tokens.weight, model.model.embed_tokens.weight)


def broken(base: Path, folder: Path, part: str, **changes: Any) -> Path:
    shutil.copytree(base, folder)
    path = folder / part / "config.json"
    path.write_text(json.dumps(read_json(path) | changes))
    return folder


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("", {"model_type": "llava_qwen"}, 'config.json: model_type: expected "llava_llama"'),
        ("", {"mm_vision_select_layer": -1}, "config.json: mm_vision_select_layer: expected -2, found -1"),
        ("", {"image_aspect_ratio": "pad"}, 'image_aspect_ratio: expected "resize", found "pad"'),
        ("", {"num_video_frames": 1}, "num_video_frames: expected 2 or more"),
        ("", {"num_video_frames": 300}, "300 frames of 16 embeddings are more than"),
        ("llm", {"model_type": "qwen2"}, 'llm/config.json: model_type: expected "llama"'),
        ("llm", {"rope_scaling": {"rope_type": "yarn"}}, 'rope_type: expected "default"'),
        ("llm", {"vocab_size": 12}, "the tokenizer has"),
        ("vision_tower", {"patch_size": 0}, "patch_size: expected a whole number"),
        ("mm_projector", {"mm_projector_type": "linear"}, 'mm_projector_type: expected "mlp_downsample"'),
    ],
)
def test_folders_that_are_others_are_refused_in_a_line(
    base: Path, tmp_path: Path, part: str, changes: dict[str, Any], message: str
) -> None:
    folder = broken(base, tmp_path / "other", part, **changes)
    with pytest.raises(UsageError) as caught:
        network.load(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_a_limit_cuts_nothing_off(base: Path, tmp_path: Path) -> None:
    unlimited = broken(base, tmp_path / "unlimited", "llm", tokenizer_model_max_length=10**30)
    assert network.read_config(unlimited).max_position_embeddings == 4096
    short = broken(base, tmp_path / "short", "llm", tokenizer_model_max_length=700)
    assert network.read_config(short).max_position_embeddings == 700


def test_what_is_missing_is_named(base: Path, tmp_path: Path) -> None:
    for name, message in (
        ("vision_tower/model.safetensors", "vision_tower has no weights"),
        ("mm_projector/config.json", "expected NaVILA's layout"),
        ("llm/tokenizer.json", "llm: no tokenizer"),
    ):
        folder = tmp_path / name.split("/")[0]
        shutil.copytree(base, folder)
        (folder / name).unlink()
        with pytest.raises(UsageError, match=message):
            network.load(folder)


def test_published_cameras_are_expected_but_of_small_networks() -> None:
    """By the published task file."""
    camera = {"width": 512, "height": 512, "hfov": 90.0}
    body = {"camera_height_m": 1.25, "forward_m": 0.25, "turn_deg": 15.0}
    assert expects(384) == Conventions(**camera, **body)
    assert expects(96) == Conventions(**body)
    fitting = [each.name for each in BENCHMARKS.values() if not expects(384).conflicts(each.body)]
    assert fitting == ["r2r-navila", "rxr-navila"]


def walk(*actions: Action, **more: Any) -> Trajectory:
    return Trajectory(Path("frames"), ("Go.",), actions, **more)


def test_runs_of_like_actions_are_one_answer_each() -> None:
    assert list(runs(walk(*[FORWARD] * 4, LEFT, RIGHT, STOP))) == [(0, 3), (3, 1), (4, 1), (5, 1), (6, 1)]
    assert list(runs(walk(FORWARD, FORWARD, STOP, strays=frozenset({1})))) == [(0, 1), (2, 1)]
    other = walk(FORWARD, LEFT, FORWARD, STOP, labels=(FORWARD, FORWARD, FORWARD, STOP))
    assert list(runs(other)) == [(0, 2), (2, 1), (3, 1)], "what was done at 1 is not what is to be done"


def test_whole_walks_are_described(base: Path, tmp_path: Path) -> None:
    """Of the walks of 14, 9 and 5 steps under two instructions each, with frames as for any question."""
    folder = write_walks(tmp_path, "EnvDrop") / "EnvDrop"
    content = read_set(folder, 3, described=True)
    assert content.windows == 6
    asked = content.asked(0)
    assert [path.name for path in asked.paths if path] == ["000.jpg", "006.jpg", "013.jpg"]
    data = QuestionDataset(content, Prompts(Letters(begins=True), NaVILAInputs(), 3), 96)
    sample = data.sample(0, random.Random(0))
    said = shown([id_ for id_ in sample.labels if id_ != IGNORED])
    assert said == "Go to the red chair number 0.\x02"
    assert "captured images sequences #\n#\n#\n. Based on this image sequence, please describe" in shown(
        sample.input_ids
    )
    assert not data.places, "no actions to compare answers with"
    options = NaVILATraining(checkpoint="", out=Path(), sets=("R2R",), describe=("EnvDrop",))
    with pytest.raises(UsageError, match="unknown set of --sets for --describe 'EnvDrop'"):
        options.check()


def test_known_features_take_the_place_of_frames(base: Path, tmp_path: Path) -> None:
    """Of black ones, too; nothing is decoded then."""
    content = read_set(write_walks(tmp_path, "R2R") / "R2R", 3)
    prompts = Prompts(network.load_tokenizer(base), NaVILAInputs(), 3)
    keys: list[str] = []

    def known(key: str) -> torch.Tensor | None:
        keys.append(key)
        return torch.zeros(64, 128)

    found = QuestionDataset(content, prompts, 96, known).sample(0, random.Random(0)).images
    assert isinstance(found, list)
    assert [each.pixels for each in found] == [None] * 3
    assert found[0].key == found[1].key != found[2].key
    pixels = QuestionDataset(content, prompts, 96).sample(0, random.Random(0)).images
    assert isinstance(pixels, torch.Tensor)
    assert pixels.shape == (3, 3, 96, 96)
    assert float(pixels[:2].max()) == -1
