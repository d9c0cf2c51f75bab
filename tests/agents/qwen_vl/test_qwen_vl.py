from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

from agents.common.checkpoints.versions import check_transformers
from agents.common.decoders.generate import Row
from agents.common.inputs import INPUTS
from agents.common.prompts.navigation import read_template
from agents.common.qwen2_5_vl.checkpoint import load_tokenizer
from agents.common.qwen2_5_vl.image import fitting, grid_of, patches
from agents.common.qwen2_5_vl.tokens import generation_settings
from agents.openai.agent import OpenAIAgent
from agents.qwen_vl import network
from agents.qwen_vl.agent import Prompts, QwenVLAgent
from agents.qwen_vl.family import END, IMAGE, PRESETS, SIZES, QwenVLCheckpoints
from agents.qwen_vl.network import Answerer, Question, QwenVL, parse_config
from agents.qwen_vl.options import FAMILY, QwenVLAsked, QwenVLInputs, QwenVLOptions, QwenVLPlanning, QwenVLTraining
from agents.qwen_vl.samples import QwenVLPolicy
from tests.agents.readable import by_tokens
from tests.fakes import make_episode
from tests.families import Whole
from tests.training.objectives.grpo.test_learner import ALONE, Engine
from tests.training.rewarded import planned as of_rewards
from tests.training.rewarded import rewarded
from tests.training.test_families import write_walks
from vlnbench.conformance import AgentConformance, FamilyConformance
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Observation
from vlnbench.training.family.checkpoints import Source
from vlnbench.training.family.policy import Sampling
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.memory.plan import plan
from vlnbench.training.objectives.grpo.groups import ScoredRollout, Update
from vlnbench.training.objectives.grpo.learner import Learner
from vlnbench.training.objectives.grpo.tally import Tally
from vlnbench.training.options import TrainOptions

ROOT = Path(__file__).parents[3]
PIXELS = 4 * 28 * 28


def _family() -> Any:
    return Whole(FAMILY)


NEW = Source("preset", "qwen-vl-tiny")
FORWARD, LEFT, STOP = Action.MOVE_FORWARD, Action.TURN_LEFT, Action.STOP


class TestFamily(FamilyConformance):
    def make_spec(self) -> FamilySpec:
        return FAMILY

    def make_options(self, folder: Path) -> TrainOptions:
        sets = write_walks(folder / "sets", "R2R")
        return QwenVLTraining(
            checkpoint="preset:qwen-vl-tiny", out=folder / "out", trajectories=sets, history=2, max_pixels=PIXELS
        )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen") / "base"
    QwenVLCheckpoints().create("qwen-vl-tiny", folder, (), seed=0)
    return folder


class TestAgent(AgentConformance):
    steps = 8

    @pytest.fixture(autouse=True)
    def _checkpoint(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = base
        monkeypatch.setattr(Prompts, "read", by_tokens)

    def make_agent(self) -> QwenVLAgent:
        return QwenVLAgent(QwenVLOptions(checkpoint=self.base, max_new_tokens=4, max_pixels=PIXELS))


def tiny() -> QwenVL:
    torch.manual_seed(1)
    model = QwenVL(parse_config(PRESETS["qwen-vl-tiny"], "preset"))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15)
    return model.eval()


@pytest.fixture(scope="module")
def stock() -> Any:
    """The network of `tiny` as transformers has it."""
    try:
        check_transformers(transformers.__version__)
    except UsageError as error:
        pytest.skip(str(error))
    raw = dict(PRESETS["qwen-vl-tiny"])
    config = transformers.Qwen2_5_VLConfig(
        **{key: value for key, value in raw.items() if key not in ("architectures", "torch_dtype")},
        vision_start_token_id=259,
        vision_end_token_id=260,
    )
    kind: Any = transformers.Qwen2_5_VLForConditionalGeneration
    made = kind._from_config(config, attn_implementation="eager")
    missing, unexpected = made.load_state_dict(nested(tiny().state_dict()), strict=False)
    assert not unexpected
    assert all("lm_head" in name or "inv_freq" in name for name in missing), missing
    made.tie_weights()
    return made.eval()


def nested(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Parameters under the names that transformers has for them since 4.52."""
    return {
        f"model.{name}"
        if name.startswith("visual.")
        else f"model.language_model.{name.removeprefix('model.')}": each
        for name, each in state.items()
    }


def test_logits_are_those_of_transformers(stock: Any) -> None:
    """Two images in one prompt, text between them: tower, windows, merger, positions, language model."""
    model = tiny()
    frames = torch.randint(0, 256, (2, 84, 140, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    ids = [7, 259, IMAGE, 260, 9, 12, 259, IMAGE, 260, 20, 21, 22]
    ours = model([ids], [frames]).logits
    grid = grid_of(84, 140)
    spread = [each for id_ in ids for each in [id_] * (grid.cells if id_ == IMAGE else 1)]
    inputs = {
        "input_ids": torch.tensor([spread]),
        "attention_mask": torch.ones(1, len(spread), dtype=torch.long),
        "pixel_values": patches(frames).flatten(0, 1),
        "image_grid_thw": torch.tensor([[1, 2 * grid.rows, 2 * grid.columns]] * 2),
        "mm_token_type_ids": torch.tensor([[int(id_ == IMAGE) for id_ in spread]]),
    }
    with torch.no_grad():
        theirs = stock(**inputs).logits
    assert ours is not None
    assert torch.allclose(ours, theirs, atol=2e-4), float((ours - theirs).abs().max())


@pytest.mark.parametrize("released", [True, False], ids=["released names", "its own names"])
def test_folders_that_transformers_writes_are_read(stock: Any, released: bool, tmp_path: Path) -> None:
    stock.save_pretrained(tmp_path, save_original_format=released)
    stored = load_file(tmp_path / "model.safetensors")
    assert ("model.language_model.norm.weight" in stored) is not released
    found, wanted = network.load(tmp_path).state_dict(), tiny().state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.language_model.more.weight": torch.zeros(1)}, "1 unexpected: model.more.weight"),
        ({"language_model.norm.weight": torch.zeros(64)}, "1 unexpected: language_model.norm.weight"),
        ({"model.norm.weight": torch.zeros(64)}, "model.norm.weight is in model.safetensors as well"),
        ({"model.language_model.norm.weight": None}, "1 missing: model.norm.weight"),
    ],
    ids=["more", "an older nesting", "both names", "less"],
)
def test_names_of_neither_layout_are_refused(
    base: Path, tmp_path: Path, change: dict[str, torch.Tensor | None], message: str
) -> None:
    folder = tmp_path / "tuned"
    shutil.copytree(base, folder)
    state = {**nested(load_file(folder / "model.safetensors")), **change}
    save_file({name: each for name, each in state.items() if each is not None}, folder / "model.safetensors")
    with pytest.raises(UsageError) as caught:
        network.load(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_are_the_published_ones() -> None:
    for name, count in (("qwen2.5-vl-3b", 3_754_622_976), ("qwen2.5-vl-7b", 8_292_166_656)):
        with torch.device("meta"):
            model = QwenVL(parse_config(SIZES[name], name))
        assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_the_config_of_transformers_5_is_read() -> None:
    flat = dict(PRESETS["qwen-vl-tiny"])
    own = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    nested = {key: value for key, value in flat.items() if key not in (*own, "vocab_size", "rms_norm_eps")}
    del nested["rope_scaling"], nested["rope_theta"]
    nested["text_config"] = {key: flat[key] for key in (*own, "vocab_size", "rms_norm_eps")} | {
        "rope_parameters": {"rope_theta": 1e6, "mrope_section": [2, 3, 3], "rope_type": "default"}
    }
    old, new = parse_config(flat, "old"), parse_config(nested, "new")
    assert {**vars(old), "raw": None} == {**vars(new), "raw": None}
    with pytest.raises(UsageError, match=r"config.json: architectures: expected"):
        parse_config({**flat, "architectures": ["Other"]}, "config.json")


@pytest.mark.parametrize(
    ("size", "most", "wanted"),
    [
        ((480, 640), 401_408, (476, 644)),
        ((720, 1280), 401_408, (448, 840)),  # both sides over 1.5152, rounded down
        ((30, 500), 401_408, (28, 504)),
        ((10, 10), 401_408, (56, 56)),  # the fewest pixels there may be
        ((10, 1000), 401_408, (28, 560)),
    ],
)
def test_frames_are_resized_by_the_rule_of_qwen(size: tuple[int, int], most: int, wanted: tuple[int, int]) -> None:
    """By hand, after `smart_resize` of transformers 5.23."""
    assert fitting(*size, most) == wanted


def prompts_of(base: Path, **wording: Any) -> Prompts:
    config = parse_config(PRESETS["qwen-vl-tiny"], "preset")
    return Prompts(load_tokenizer(base, config), QwenVLInputs(prompt=read_template(None), **wording))


def test_answers_are_read(base: Path) -> None:
    plain, tagged = prompts_of(base), prompts_of(base, answers="tagged")
    assert plain.read(plain.answer([FORWARD, LEFT])) == [FORWARD, LEFT]
    assert plain.read(plain._encode("forward")) is None
    assert plain.read(plain.answer([FORWARD] * 5)) is None, "more than it may"
    assert tagged.read(tagged.answer([LEFT, STOP])) == [LEFT, STOP]
    thought = "<think>Or <answer>STOP</answer>? No.</think> <answer>MOVE_FORWARD</answer>"
    assert tagged.read(tagged._encode(thought)) == [FORWARD]
    assert tagged.read(tagged._encode("MOVE_FORWARD")) is None
    assert "<answer>" in tagged._tokenizer.decode(
        tagged.question("Go.", [], 0), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )


def test_the_question_is_that_of_a_served_model(base: Path) -> None:
    """Word for word: what `OpenAIAgent` sends as text stands in the chat."""
    from agents.common.answers.names import AS_TEXT
    from agents.common.prompts.navigation import Template, read_template
    from agents.openai.options import OpenAIOptions

    prompts = prompts_of(base)
    options = OpenAIOptions()
    template = Template(read_template(options.prompt), options.actions_per_answer, options.turn_deg)
    text = template.question("Go ahead.", [FORWARD, LEFT], 2, AS_TEXT)
    ids = prompts.question("Go ahead.", [FORWARD, LEFT], 2)
    chat = prompts._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert text in chat
    assert "MOVE_FORWARD, TURN_LEFT" in text
    assert ids.count(IMAGE) == 3
    assert OpenAIAgent.options_type is OpenAIOptions
    with pytest.raises(ValueError, match="which stands for an image"):
        prompts.question("Go to <|image_pad|>.", [], 0)


def test_answers_do_not_depend_on_the_batch(base: Path) -> None:
    model = tiny()
    prompts = prompts_of(base)
    frames = torch.randint(0, 256, (3, 56, 56, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    questions = [
        Question(number, prompts.question("Go. " * (number + 1), [], number), frames[: number + 1])
        for number in range(3)
    ]
    settings = generation_settings(base, prompts._tokenizer)
    together = Answerer(model, settings, max_new_tokens=6, max_batch=3).run(questions)
    assert together == [Answerer(model, settings, max_new_tokens=6).run([each])[0] for each in questions]
    assert settings.eos == {END}


@pytest.mark.parametrize("answers", ["plain", "tagged"])
def test_constrained_answers_can_always_be_read(base: Path, answers: str) -> None:
    """With random weights free answers cannot be read, and constrained ones always can."""
    model, prompts = tiny(), prompts_of(base, answers=answers, actions_per_answer=2)
    settings = generation_settings(base, prompts._tokenizer)
    frames = torch.zeros(1, 56, 56, 3, dtype=torch.uint8)
    questions = [Question(i, prompts.question(f"Go to room {i}.", [], 0), frames) for i in range(4)]
    free = Answerer(model, settings, max_new_tokens=12).run(questions)
    bound = Answerer(model, settings, max_new_tokens=12, allowed=prompts.allowed()).run(questions)
    assert any(prompts.read(answer) is None for answer in free)
    for answer in bound:
        assert prompts.read(answer)
        assert answer[-1] in settings.eos
    allowed = prompts.allowed()
    assert allowed(prompts.answer([STOP])) == [], "a whole answer"
    with pytest.raises(UsageError, match=r"--constrained: .* which 6 actions per answer allow at most; found 7"):
        QwenVLAgent(QwenVLOptions(checkpoint=base, constrained=True, actions_per_answer=7))


def test_prompts_and_log_probabilities_are_those_of_the_last_answers(base: Path) -> None:
    model, prompts, likely = tiny(), prompts_of(base), dict[int, float]()

    def choose(rows: Sequence[Row], logits: torch.Tensor) -> list[list[int]]:
        for row, (scores,) in zip(rows, logits.log_softmax(-1), strict=True):
            likely[row.turn.slot] = likely.get(row.turn.slot, 0.0) + scores.max().item()
        found: list[list[int]] = logits.argmax(-1).tolist()
        return found

    frames = torch.zeros(2, 56, 56, 3, dtype=torch.uint8)
    questions = [Question(i, prompts.question("Go." * (1 + 9 * i), [], 1), frames) for i in range(3)]
    settings = replace(generation_settings(base, prompts._tokenizer), eos=frozenset())
    answerer = Answerer(model, settings, max_new_tokens=3, choose=choose)
    for question, answer in zip(questions, answerer.run(questions), strict=True):
        prompt, found = answerer.noted.of(question.slot, len(answer))
        assert prompt == len(question.input_ids) - 2 + 2 * (56 // 28) ** 2
        assert found == pytest.approx(likely[question.slot], abs=1e-4)


def test_it_is_learned_from_rewards(base: Path) -> None:
    """Ratio 1, log-probabilities that agree with those of acting, and a gradient in every part."""
    model = network.load(base)
    options = rewarded(QwenVLTraining)(
        checkpoint="", out=Path(), objective="grpo", rollouts="steps", group=2, batch=2, accumulation=2, history=1,
        max_pixels=PIXELS,
    )  # fmt: skip
    family = _family()
    policy = family.policy(model, base, options, Sampling(1.0, answer_tokens=5))
    policy.renew()
    agent = policy.agent()
    for slot, seed in enumerate((5, 6)):
        agent.reset(slot, make_episode(1), seed)
    for step in range(3):
        frame = np.full((24, 32, 3), 40 * step, dtype=np.uint8)
        agent.act({slot: Observation("", step, rgb=frame) for slot in range(2)})
    recorded = [policy.recorded("1", seed) for seed in (5, 6)]
    assert recorded[0].samples[0].labels != recorded[1].samples[0].labels
    model.train()
    tally = Tally(ALONE)
    learner = Learner(options, family, ALONE, tally, None)
    judged = tuple(ScoredRollout(each, gain) for each, gain in zip(recorded, (1.0, -1.0), strict=True))
    learner.take(Update(judged, tuple(sum(each.tokens) for each in recorded), recorded[0].samples[0]), 5)
    for loss in learner.losses(Engine(model)):
        loss.backward()  # type: ignore[no-untyped-call]
    told = tally.take()
    assert told["ratio"] == 1.0
    assert told["drawn_apart"] < 1e-4
    for part in QwenVLTraining.PARTS:
        grads = [p.grad for name, p in model.named_parameters() if family.part_of(name) == part]
        assert any(grad is not None and bool((grad != 0).any()) for grad in grads), part


def test_questions_of_recorded_walks_have_the_expert_s_actions(base: Path, tmp_path: Path) -> None:
    root = write_walks(tmp_path, "R2R")
    family = _family()
    options = family.settled(NEW, QwenVLTraining(checkpoint="", out=Path(), history=1, max_pixels=PIXELS))
    policy = family.policy(network.load(base), base, options, Sampling(1.0, answer_tokens=3))
    content = family.read_set(root / "R2R", options)
    questions = policy.questions([content])
    assert len(questions) == content.windows
    walk = json.loads((root / "R2R" / "annotations.json").read_text())[0]["actions"]
    first, second = questions.question(0, "any"), questions.question(1, "any")
    assert [int(action) for action in first.expected] == walk[1:5]
    assert [int(action) for action in second.expected] == walk[5:9]
    policy.renew()
    answers = policy.answer([first.prompt, second.prompt], [1, 2])
    assert all(each.answers == 1 and each.tokens[0] <= 3 for each in answers)


@pytest.mark.slow
@pytest.mark.long
def test_the_user_s_case_is_planned_by_name() -> None:
    """VLM-R1: 6 x 96 GB, group 4. Today a batch of 4 is four answers per GPU and fits; that of the version they
    ran was four prompts of four answers, without checkpointing, at the full size of frames, and does not."""
    common: dict[str, Any] = {"model": "qwen2.5-vl-7b", "gpus": "6x96GB", "objective": "grpo", "group": 4}
    today = plan(of_rewards(QwenVLPlanning)(**common, batch=4, accumulation=1))
    assert today.fits == "yes"
    assert today.usage.reference == 0
    held = plan(of_rewards(QwenVLPlanning)(**common, batch=4, accumulation=1, beta=0.04))
    assert held.usage.reference == 2 * 8_292_166_656
    assert held.usage.static == today.usage.static + held.usage.reference
    adapted = plan(
        of_rewards(QwenVLPlanning)(**common, batch=4, beta=0.04, tunable_parts=(), lora_rank=64, accumulation=1)
    )
    assert adapted.usage.reference == 0
    then = of_rewards(QwenVLPlanning)(**common, batch=16, accumulation=1, beta=0.04, gradient_checkpointing=False)
    assert plan(then).fits == "no"
    assert today.peaks["rollouts"] > 0


def test_a_frame_that_is_broken_is_named(base: Path, tmp_path: Path) -> None:
    root = write_walks(tmp_path, "R2R")
    path = root / "R2R" / "images" / "scan_r2r_000000" / "rgb" / "000.jpg"
    path.write_bytes(b"no picture")
    options = _family().settled(NEW, QwenVLTraining(checkpoint="", out=Path(), trajectories=root))
    family = _family()
    model = network.load(base)
    (samples,) = family.samples([family.read_set(root / "R2R", options)], model, base, options, None)

    with pytest.raises(UsageError, match=r"000\.jpg: cannot be read as an image"):
        samples.sample(0, random.Random(0))


UNUSUAL: dict[str, Any] = {"history": 1, "max_pixels": 6 * 28 * 28, "actions_per_answer": 2, "answers": "tagged"}


@pytest.mark.slow
@pytest.mark.needs("deepspeed")
def test_a_checkpoint_is_evaluated_as_it_was_trained(tmp_path: Path) -> None:
    """Every input other than usual: ids and images of training are those of its evaluation."""
    root = write_walks(tmp_path, "R2R")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("{instruction} Step {step}, turns of {turn_deg}, at most {max_actions}. {format}")
    folder = tmp_path / "run/model"
    command = ["train", "--checkpoint", "preset:qwen-vl-tiny", "--out", tmp_path / "run", "--trajectories", root]
    command += ["--steps", 2, "--batch", 1, "--accumulation", 1, "--workers", 0]
    command += ["--prompt", prompt, "--turn-deg", 30]
    command += [word for name, value in UNUSUAL.items() for word in ("--" + name.replace("_", "-"), value)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "vlnbench", *map(str, command)], env=environment, check=True, cwd=ROOT)
    prompt.unlink()  # the text is the checkpoint's own by now
    agent = QwenVLAgent(QwenVLOptions(checkpoint=folder, max_new_tokens=2))
    assert agent.expects.turn_deg == 30
    assert {name: agent.identity[name] for name in UNUSUAL} == UNUSUAL
    assert "assumed" not in agent.description
    asked: list[Question] = []

    class Recording:
        def run(self, questions: Sequence[Question]) -> list[list[int]]:
            asked.extend(questions)
            return [agent._prompts.answer(acted[step : step + 2])]

    agent._answers = Recording()
    family = _family()
    model = network.load(folder)
    settled = family.settled(Source("checkpoint", str(folder), folder), QwenVLTraining(checkpoint="", out=Path()))
    content = family.read_set(root / "R2R", settled)
    (samples,) = family.samples([content], model, folder, settled, None)
    walk = content.trajectories[0]
    acted = walk.actions
    agent.reset(0, replace(make_episode(1), instruction=walk.instructions[0]), 0)
    for step, name in enumerate(walk.frame_names()):
        with Image.open(walk.frames_dir / name) as image:
            agent.act({0: Observation(walk.instructions[0], step, rgb=np.asarray(image.convert("RGB")))})
    assert len(asked) > 2
    for number, question in enumerate(asked):
        trained = samples.sample(number, random.Random(0))
        assert trained.input_ids[: len(question.input_ids)] == question.input_ids
        assert torch.equal(trained.frames, question.frames)


def test_what_a_checkpoint_does_not_say_is_assumed_in_a_line_and_what_it_says_is_checked(base: Path) -> None:
    folder = base.with_name("foreign")
    shutil.copytree(base, folder)
    (folder / INPUTS).unlink()
    agent = QwenVLAgent(QwenVLOptions(checkpoint=folder, max_new_tokens=2))
    assert "history 4" in agent.description
    assert f"assumed where no option says so, for the checkpoint has no {INPUTS}" in agent.description
    for text, message in (
        ('{"history": "4"}', "history: input should be a valid integer"),
        ('{"memory": 4}', "memory: "),
        ('{"prompt": "{secret}"}', "prompt: unknown field {secret}"),
    ):
        (folder / INPUTS).write_text(text)
        with pytest.raises(UsageError, match=re.escape(message)):
            QwenVLAgent(QwenVLOptions(checkpoint=folder))


def test_options_and_inputs_have_the_same_fields() -> None:
    options = {each.name for each in fields(QwenVLAsked)}
    assert {each.name for each in fields(QwenVLInputs)} == options
    assert all(each.default is None for each in fields(QwenVLAsked))


def test_the_image_token_is_never_drawn_and_takes_no_share(base: Path) -> None:
    """A drawn one would ask for a frame that nobody gave; the others add up to 1 without it."""
    model = network.load(base)
    with torch.no_grad():
        model.model.embed_tokens.weight[IMAGE] *= 1000  # its score is far above the others or far below
    prompts = prompts_of(base)
    ids = prompts.question("Go.", [], 0)
    frames = torch.zeros(1, 56, 56, 3, dtype=torch.uint8)
    policy = QwenVLPolicy(
        model, generation_settings(base, prompts._tokenizer), prompts, Sampling(1.0, answer_tokens=4)
    )
    policy.renew()
    found = policy.answer([(ids, frames)] * 8, list(range(8)))
    assert all(IMAGE not in each.samples[0].labels for each in found)
    sample = found[0].samples[0]
    with torch.no_grad():
        output = model([sample.input_ids], [sample.frames], [sample.labels], want_logits=False, at_labels=True)
    assert output.logits is not None
    assert float(output.logits.softmax(-1)[:, IMAGE].max()) == 0
