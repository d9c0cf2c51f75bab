"""The family: the contract, parts and groups against the recordings, samples, kept features."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from agents.common.qwen2_5_vl.language import expand
from agents.janusvln.agent import JanusVLNAgent, Prompts
from agents.janusvln.family import HEAD
from agents.janusvln.network import JanusVLN, Memory, Question
from agents.janusvln.options import (
    FAMILY,
    PARTS,
    JanusVLNAsked,
    JanusVLNInference,
    JanusVLNInputs,
    JanusVLNOptions,
    JanusVLNPlanning,
    JanusVLNTraining,
)
from agents.janusvln.options import FAMILY as JANUSVLN
from agents.janusvln.samples import StepSamples
from tests.agents.janusvln.tiny import END, IMAGE, write_tiny
from tests.agents.janusvln.walks import write_frame, write_trajectories
from tests.agents.recorded import traces, whole
from tests.fakes import make_episode
from tests.families import Whole
from vlnbench.conformance import FamilyConformance
from vlnbench.errors import UsageError
from vlnbench.interfaces import Observation
from vlnbench.training.family.checkpoints import Source
from vlnbench.training.family.find import find_family
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.memory.objective import StepMemory
from vlnbench.training.memory.plan import plan
from vlnbench.training.memory.trace import trace
from vlnbench.training.memory.zero import LIVE_PARAMETERS, Sharding, gathered_bytes
from vlnbench.training.options import TrainOptions
from vlnbench.training.parts import freeze, groups

CPU = torch.device("cpu")
PUBLISHED = ("mm_mlp", "mm_llm", "geometry_merger")


def options(folder: Path, checkpoint: str = "preset:janusvln-tiny", **changes: Any) -> JanusVLNTraining:
    return JanusVLNTraining(
        checkpoint=checkpoint, out=folder / "out", trajectories=folder / "sets", sets=("ScaleVLN",), **changes
    )


@pytest.mark.slow  # together some seconds
class TestJanusVLN(FamilyConformance):
    def make_spec(self) -> FamilySpec:
        return FAMILY

    def make_options(self, folder: Path) -> TrainOptions:
        if not (folder / "sets").exists():
            write_trajectories(folder / "sets/ScaleVLN", (3, 2))
        return options(folder)


class Made:
    """A small checkpoint by formula with a set to train on, frames 140 pixels wide."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        write_trajectories(folder / "sets/ScaleVLN", (11, 3))
        write_tiny(folder / "base")
        self.family = Whole(JANUSVLN)
        self.base = folder / "base"
        source = Source("checkpoint", "base", self.base)
        self.options = self.family.settled(
            source, options(folder, str(self.base), **{"image_width": 140, **changes})
        )
        self.content = self.family.read_set(folder / "sets/ScaleVLN", self.options)
        self.model = self.family.load(self.base, self.options, self.family.placement(self.options, CPU))
        freeze(self.model, self.family, self.options)

    def samples(self, known: Any = None) -> StepSamples:
        (found,) = self.family.samples([self.content], self.model, self.base, self.options, known)
        assert isinstance(found, StepSamples)
        return found

    def batch(self, *indices: int, known: Any = None) -> dict[str, Any]:
        samples = self.samples(known)
        return self.family.collate([samples.sample(index, random.Random(0)) for index in indices])


def test_recorded_samples_have_the_recorded_ids_and_labels(goldens: Path, tmp_path: Path) -> None:
    traced = traces(goldens)["training"]
    chosen = options(tmp_path, str(goldens / "checkpoint"), tunable_parts=PUBLISHED, history=8)
    family = Whole(JANUSVLN)
    model = family.load(goldens / "checkpoint", chosen, family.placement(chosen, CPU))
    sets = [family.read_set(goldens / "train_data" / name, chosen) for name in ("R2R", "ScaleVLN")]
    parts = family.samples(sets, model, goldens / "checkpoint", chosen, None)
    for sample in traced["samples"][1:3]:
        index = sample["record"]
        part = index >= len(parts[0])
        made = parts[part].sample(index - part * len(parts[0]), random.Random(0))
        ids, positions = expand(made.input_ids, [made.grid] * len(made.frames), model.config.image_token)
        assert ids.tolist() == whole(sample["input_ids_rle"])
        assert positions.max() == sample["position_ids"]["max"]
        assert [label for label in made.labels if label >= 0] == sample["labels"]
        assert family.loss(model, family.collate([made])).item() == pytest.approx(sample["loss"], abs=1e-4)


@pytest.mark.parametrize("vision", [False, True])
def test_parts_and_groups_are_the_recorded_ones(goldens: Path, tmp_path: Path, vision: bool) -> None:
    """The published code also trains geometry merger and output layer whatever its switches say."""
    traced = traces(goldens)["training"]
    rates = {"learning_rate": 2e-5, "projector_lr": 1e-5, "geometry_lr": 1e-5}
    parts = PARTS if vision else PUBLISHED
    if vision:
        rates["vision_tower_lr"] = 1e-6
    chosen = options(tmp_path, str(goldens / "checkpoint"), tunable_parts=parts, **rates)
    family = Whole(JANUSVLN)
    model = family.load(goldens / "checkpoint", chosen, family.placement(chosen, CPU))
    names = traced["parameter_names"]
    freeze(model, family, chosen)
    found = {
        name: (chosen.rate_of(group.part), chosen.weight_decay if group.decays else 0.0)
        for group in groups(model, family, chosen)
        for name in group.names
    }
    known = {}
    for group in traced["optimizer_groups"][f"vision={int(vision)} mlp=1 llm=1"]:
        rate = 2e-5 if isinstance(group["lr"], str) else group["lr"]
        known.update({names[index]: (rate, group["weight_decay"]) for index in group["params"]})
    assert found == known


@pytest.mark.parametrize("switches", ["vision=0 mlp=0 llm=0", "vision=1 mlp=1 llm=0", "vision=0 mlp=0 llm=1"])
def test_what_trains_is_what_the_published_switches_train(goldens: Path, tmp_path: Path, switches: str) -> None:
    traced = traces(goldens)["training"]
    on = [name for name, value in re.findall(r"(\w+)=(\d)", switches) if value == "1"]
    parts = (*(f"mm_{name}" for name in on), "geometry_merger")
    chosen = options(tmp_path, str(goldens / "checkpoint"), tunable_parts=parts, train_head="llm" not in on)
    family = Whole(JANUSVLN)
    model = family.load(goldens / "checkpoint", chosen, family.placement(chosen, CPU))
    freeze(model, family, chosen)
    found = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    names = traced["parameter_names"]
    assert found == {names[index] for index in traced["trainable"][switches]["trainable"]}


def test_the_output_layer_is_frozen_with_its_part_unless_it_is_asked_for(tmp_path: Path) -> None:
    made = Made(tmp_path, tunable_parts=("mm_mlp",))
    assert not made.model.get_parameter(HEAD).requires_grad
    assert "lm_head.weight is frozen with mm_llm; the published code trains it" in made.family.remark(
        made.model, made.options
    )
    asked = replace(made.options, train_head=True)
    freeze(made.model, made.family, asked)
    assert made.model.get_parameter(HEAD).requires_grad
    assert "as in the published code (--train-head)" in made.family.remark(made.model, asked)
    everything = replace(made.options, tunable_parts=PARTS)
    assert not made.family.remark(made.model, everything)
    with pytest.raises(UsageError, match="--train-head: the output layer is of mm_llm, which trains anyway"):
        replace(asked, tunable_parts=PARTS).check()


def test_questions_are_those_of_training_or_of_the_evaluation(tmp_path: Path) -> None:
    made = Made(tmp_path)
    samples = made.samples()
    first = samples.sample(2, random.Random(0))
    assert [label for label in first.labels if label >= 0] == [*map(ord_id, "TURN_RIGHT"), END, ord_id("\n")]
    assert first.input_ids.count(IMAGE) == 3
    asked = replace(made.options, wording="evaluation")
    (other,) = made.family.samples([made.content], made.model, made.base, asked, None)
    second = other.sample(2, random.Random(0))
    assert [label for label in second.labels if label >= 0] == [*map(ord_id, "TURN_RIGHT"), END]
    assert second.input_ids[: second.labels.index(ord_id("T"))] == other._prompts.question(
        made.content.walks[0].texts[0], 3
    )


def ord_id(character: str) -> int:
    """Id of a byte in the small tokenizer, whose alphabet is sorted by the letters that stand for bytes."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return alphabet.index("Ċ" if character == "\n" else character)


class Kept(dict[str, torch.Tensor]):
    """A feature cache in memory."""

    def fill(self, made: Made, batch: dict[str, Any]) -> dict[str, Any]:
        filled = dict(batch)
        for each in made.family.all_features(made.model, CPU):
            mixed = batch[each.entry]
            rows = list(mixed.known)
            for key, pixels in zip(mixed.keys, mixed.pixels, strict=True):
                self[key] = each.encode(each.tower, pixels[None].to(each.dtype))[0].detach()
                rows.append(self[key])
            filled[each.entry] = [torch.stack([rows[place] for place in order]) for order in mixed.order]
        return filled


@pytest.mark.parametrize("parts", [PUBLISHED, PARTS])
def test_kept_features_give_the_same_loss(tmp_path: Path, parts: tuple[str, ...]) -> None:
    """With the tower frozen a known frame is not decoded, with it trained VGGT's features are kept alone."""
    made = Made(tmp_path, tunable_parts=parts)
    indices = (0, 10, 12)
    plain = made.family.loss(made.model, made.batch(*indices)).item()
    kept = Kept()
    cold = made.batch(*indices, known=kept.get)
    assert made.family.loss(made.model, kept.fill(made, cold)).item() == pytest.approx(plain, abs=1e-5)
    warm = made.batch(*indices, known=kept.get)
    assert not warm["geometries"].keys
    if parts == PUBLISHED:
        assert warm["frames"] is None
        assert not warm["towers"].keys
        assert len(cold["towers"].keys) == 1 + 8 + 2, "a frame counts once in a batch"
    else:
        assert "towers" not in warm
    assert made.family.loss(made.model, kept.fill(made, warm)).item() == pytest.approx(plain, abs=1e-5)


def test_geometry_is_known_by_all_frames_in_order(tmp_path: Path) -> None:
    made = Made(tmp_path)
    keys = {made.batch(index, known={}.get)["geometries"].keys[0] for index in range(made.content.windows)}
    assert len(keys) == made.content.windows


def test_kept_features_of_unlike_frames_cannot_share_a_batch(tmp_path: Path) -> None:
    made = Made(tmp_path, tunable_parts=PUBLISHED)
    kept = Kept()
    kept.fill(made, made.batch(11, known=kept.get))
    for path in (tmp_path / "sets/ScaleVLN/images/scene_0/rgb").iterdir():
        write_frame(path, 5, (64, 64))
    kept.fill(made, made.batch(0, known=kept.get))
    with pytest.raises(UsageError, match="--feature-cache: frames of a batch differ in shape; give --batch 1"):
        made.batch(0, 11, known=kept.get)


def test_broken_frames_and_wrong_widths_are_one_line(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.content.walks[0].folder.joinpath("000.png").write_bytes(b"no picture")
    with pytest.raises(UsageError, match=r"000\.png: cannot be read as an image"):
        made.batch(0)
    with pytest.raises(UsageError, match="--image-width 150: expected a multiple of 28 pixels"):
        made.family.config(Source("checkpoint", "base", made.base), replace(made.options, image_width=150))


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def rename(folder: Path) -> None:
    (folder / "config.json").write_text((folder / "config.json").read_text().replace('_layers": 2', '_layers": 1'))


def strip(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, "model.safetensors is damaged"),
        (rename, "12 unexpected: model.layers.1."),
        (strip, "has no tokenizer files: give --tokenizer"),
    ],
)
def test_broken_checkpoints_are_one_line_before_anything_is_written(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    """What the trainer asks before it makes the run's folder."""
    folder = tmp_path / "base"
    write_tiny(folder)
    spoil(folder)
    chosen = options(tmp_path, str(folder))

    def asked() -> None:
        Whole(JANUSVLN).config(Source("checkpoint", "base", folder), chosen)
        Whole(JANUSVLN).content_hash(folder, chosen)

    with pytest.raises(UsageError) as caught:
        asked()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_version_of_transformers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.__version__", "5.4.1")
    with pytest.raises(UsageError, match=r"transformers 5\.4\.1 gives the images of Qwen2\.5-VL wrong positions"):
        Whole(JANUSVLN).placement(options(tmp_path), CPU)


UNUSUAL: dict[str, Any] = {"history": 3, "image_width": 112, "wording": "published"}


class Asking:
    """In the place of a decoder: keeps frames and questions, and answers MOVE_FORWARD."""

    def __init__(self, prompts: Prompts) -> None:
        self.frames: list[Any] = []
        self.questions: list[Question] = []
        self._answer = prompts.answer("MOVE_FORWARD")

    def begin(self, slot: int) -> None:
        pass

    def memory(self, slot: int) -> Memory:
        return Memory(images=[torch.empty(0)] * len(self.frames))

    def see(self, frames: Any) -> None:
        self.frames.append(frames[0])

    def run(self, questions: Any) -> list[list[int]]:
        self.questions += questions
        return [self._answer]


def test_a_checkpoint_is_evaluated_as_it_was_trained(tmp_path: Path) -> None:
    """Every input other than that of a published checkpoint: ids and images of training are those of its agent."""
    made = Made(tmp_path, **UNUSUAL)
    made.family.save(made.model, tmp_path / "saved", made.base, made.options)
    agent = JanusVLNAgent(JanusVLNOptions(checkpoint=tmp_path / "saved", dtype="float32"))
    assert {name: agent.identity[name] for name in ("num_history", "image_width", "wording")} == {
        "num_history": 3, "image_width": 112, "wording": "published"
    }  # fmt: skip
    assert "assumed" not in agent.description
    asked = agent._model = Asking(agent._prompts)
    walk, samples = made.content.walks[0], made.samples()
    agent.reset(0, replace(make_episode(1), instruction=walk.texts[0]), 0)
    for step, name in enumerate(walk.frames):
        with Image.open(walk.folder / name) as image:
            agent.act({0: Observation("", step, rgb=np.asarray(image.convert("RGB")))})
        trained = samples.sample(step, random.Random(0))
        question = asked.questions[-1]
        assert trained.input_ids[: len(question.input_ids)] == question.input_ids
        assert max(trained.labels[: len(question.input_ids)]) < 0, "the answer begins where the question ends"
        assert trained.frames is not None
        assert np.array_equal(trained.frames.numpy(), np.stack([asked.frames[each] for each in question.steps]))
    assert len(asked.questions) > 4


def test_training_goes_on_with_what_a_checkpoint_says_and_options_stand_over_it(tmp_path: Path) -> None:
    made = Made(tmp_path, **UNUSUAL)
    saved = tmp_path / "saved"
    made.family.save(made.model, saved, made.base, made.options)
    source = Source("checkpoint", "saved", saved)
    left = options(tmp_path, str(saved))
    assert made.family.settled(source, left) == replace(left, **UNUSUAL)
    given = replace(left, history=5, wording="evaluation")
    again = made.family.load(saved, given, made.family.placement(given, CPU))
    assert isinstance(again, JanusVLN)
    assert (again.config.image_width, again.config.num_history) == (112, 5)
    shown = made.family.settled(source, JanusVLNInference(model=str(saved)))
    assert (shown.history, shown.image_width) == (3, 112)
    agent = JanusVLNAgent(JanusVLNOptions(checkpoint=saved, dtype="float32", wording="evaluation", history=2))
    assert agent.identity["num_history"] == 2
    assert "wording" not in agent.identity
    (saved / "inputs.json").write_text('{"history": 0}')
    with pytest.raises(UsageError, match=r"inputs\.json: history 0: expected 1 or more"):
        made.family.settled(source, left)


def test_what_a_published_checkpoint_does_not_say_is_assumed(tmp_path: Path) -> None:
    """The published code trains in other words than those in which it asks."""
    write_tiny(tmp_path / "base")
    agent = JanusVLNAgent(JanusVLNOptions(checkpoint=tmp_path / "base", dtype="float32"))
    assert "history 8, image_width 644, wording evaluation; assumed" in agent.description
    settled = Whole(JANUSVLN).settled(
        Source("checkpoint", "base", tmp_path / "base"), options(tmp_path, str(tmp_path / "base"))
    )
    assert (settled.history, settled.image_width, settled.wording) == (8, 644, "published")


def test_options_and_inputs_have_the_same_fields() -> None:
    assert {each.name for each in fields(JanusVLNInputs)} == {each.name for each in fields(JanusVLNAsked)}
    assert all(each.default is None for each in fields(JanusVLNAsked))


def test_vggt_is_gathered_whole_in_plans_of_zero_3() -> None:
    options = JanusVLNPlanning(model="preset:janusvln-tiny", dtype="fp32")
    found = trace(*find_family("", options.model, "--model"), options, StepMemory())
    network = Whole(JANUSVLN).build(Whole(JANUSVLN).config(Source("preset", "janusvln-tiny"), options), options)
    assert found.whole == sum(parameter.numel() for parameter in network.vggt.parameters())
    large = replace(found, parts={"mm_llm": 3 * LIVE_PARAMETERS}, whole=7, largest=5)
    assert gathered_bytes(large, Sharding(3, 2, 1, "adamw")) == 2 * LIVE_PARAMETERS
    whole = replace(large, whole=LIVE_PARAMETERS + 7)
    assert gathered_bytes(whole, Sharding(3, 2, 1, "adamw")) == 2 * (LIVE_PARAMETERS + 7)


@pytest.mark.slow
def test_the_published_sizes_are_planned() -> None:
    """Weights of the 7 B and the states of the published setting, exactly; the rest is the planner's."""
    planned = plan(JanusVLNPlanning(gpus="8x80GB", tunable_parts=PUBLISHED, zero=3))
    assert sum(planned.parts.values()) == 9_314_832_390
    assert planned.trainable == 7_708_435_200
    assert planned.tokens == 230 + 9 * 391
    smaller = plan(JanusVLNPlanning(gpus="8x80GB", tunable_parts=PUBLISHED, zero=3, image_width=448))
    assert smaller.tokens == 230 + 9 * 16 * 12
    assert smaller.peaks["backward"] < planned.peaks["backward"]
