"""The family: the contract, parts against released configs, what a sample holds, kept features and frames."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.common.packing.frames import fingerprint
from agents.common.sets.recurrent import WalkSamples, inflection_weights
from agents.common.sight.rgbd import frames
from agents.vlnce.checkpoint import load
from agents.vlnce.family import TABLE
from agents.vlnce.network import Learner
from agents.vlnce.options import FAMILY, PARTS, VLNCEPlanning, VLNCETraining
from agents.vlnce.options import FAMILY as VLNCE
from tests.agents.vlnce import released
from tests.agents.vlnce.walks import write_walks
from tests.families import Whole
from vlnbench.conformance import FamilyConformance
from vlnbench.errors import UsageError
from vlnbench.interfaces import Observation
from vlnbench.training.family.checkpoints import Source
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.family.trains import rule_of
from vlnbench.training.memory.plan import plan
from vlnbench.training.options import TrainOptions
from vlnbench.training.parts import freeze

FROZEN = tuple(part for part in PARTS if part not in ("rgb_encoder", "depth_encoder"))
"""Parts of a network whose encoders of images stay as they are."""
CPU = torch.device("cpu")


def options(folder: Path, checkpoint: str = "preset:cma-tiny", **changes: Any) -> VLNCETraining:
    return VLNCETraining(
        checkpoint=checkpoint, out=folder / "out", trajectories=folder / "sets", sets=("R2R",), **changes
    )


@dataclass(frozen=True, kw_only=True)
class Short(VLNCEPlanning):
    """Every step is traced, and each is like the one before."""

    length: int = 6


class TestCMA(FamilyConformance):
    def make_spec(self) -> FamilySpec:
        return replace(FAMILY, planning=Short)

    def make_options(self, folder: Path) -> TrainOptions:
        write_walks(folder / "sets", "R2R")
        return options(folder, progress_weight=0.5)


class TestSeq2Seq(TestCMA):
    def make_options(self, folder: Path) -> TrainOptions:
        write_walks(folder / "sets", "R2R")
        return options(folder, "preset:seq2seq-tiny")


@pytest.mark.slow
class TestReleased(TestCMA):
    """A released file is where a training starts; what it writes is a folder."""

    def make_options(self, folder: Path) -> TrainOptions:
        if not (folder / "sets").exists():
            write_released(folder)
        return options(folder, str(folder / "cma.pth"))


def write_released(folder: Path) -> None:
    released.write_tiny(folder / "cma.pth")
    padded = [[3, 4, 5, *[0] * 197], [7, 2, *[0] * 198]]
    write_walks(folder / "sets", "R2R", size=(224, 224), tokens=padded)
    for path in (folder / "sets/R2R/images").rglob("*.png"):
        enlarge(path)


def enlarge(path: Path) -> None:
    from PIL import Image

    with Image.open(path) as image:
        larger = np.pad(np.asarray(image), 16)
    Image.fromarray(larger).save(path)


class Made:
    """A small network with a set to train on."""

    def __init__(self, folder: Path, checkpoint: str = "preset:cma-tiny", **changes: Any) -> None:
        self.options = options(folder, checkpoint, **changes)
        self.family = Whole(VLNCE)
        self.content = self.family.read_set(folder / "sets/R2R", self.options)
        self.base = folder / "base"
        if not self.base.exists():
            self.family.create(checkpoint.removeprefix("preset:"), self.base, self.content.texts(), 0)
        self.learner = self.load()

    def load(self, **changes: Any) -> Learner:
        chosen = replace(self.options, **changes)
        return self.family.load(self.base, chosen, self.family.placement(chosen, CPU))

    def samples(self, known: Any = None) -> WalkSamples:
        (samples,) = self.family.samples([self.content], self.learner, self.base, self.options, known)
        assert isinstance(samples, WalkSamples)
        return samples

    def batch(self, known: Any = None) -> dict[str, Any]:
        samples = self.samples(known)
        return self.family.collate([samples.sample(i, random.Random(0)) for i in range(len(samples))])


@pytest.fixture
def made(tmp_path: Path) -> Made:
    write_walks(tmp_path / "sets", "R2R")
    return Made(tmp_path)


def test_parts_decide_what_of_a_released_network_trains(tmp_path: Path) -> None:
    """Its config says that ResNets and word vectors are frozen; --tunable-parts is asked instead."""
    write_released(tmp_path)
    family = Whole(VLNCE)
    for parts in (PARTS, ("cross_modal",)):
        chosen = options(tmp_path, str(tmp_path / "cma.pth"), tunable_parts=parts)
        learner = family.load(tmp_path / "cma.pth", chosen, family.placement(chosen, CPU))
        freeze(learner, family, chosen)
        trained = {rule_of(TABLE, name).part for name, each in learner.named_parameters() if each.requires_grad}
        assert trained == set(parts)
        norms = [each for each in learner.train().modules() if isinstance(each, torch.nn.BatchNorm2d)]
        assert all(each.training == ("rgb_encoder" in parts) for each in norms)


def test_statistics_of_batch_norm_are_saved(tmp_path: Path) -> None:
    write_released(tmp_path)
    family, chosen = Whole(VLNCE), options(tmp_path, str(tmp_path / "cma.pth"))
    learner = family.load(tmp_path / "cma.pth", chosen, family.placement(chosen, CPU))
    name = "net.rgb_encoder.cnn.1.running_mean"
    learner.get_buffer(name).add_(1)
    whole = family.shapes(learner)
    whole.load_state_dict(learner.state_dict(), assign=True)
    family.save(whole, tmp_path / "saved", tmp_path / "cma.pth", chosen)
    policy, config, *_ = load(tmp_path / "saved")
    assert bool((policy.get_buffer(name) == learner.get_buffer(name)).all())
    assert (config.views.frame, config.vocabulary) == ((224, 224), ())


def test_a_sample_is_labeled_by_the_expert_where_there_is_one(made: Made) -> None:
    first, second, third = (made.samples().sample(i, random.Random(0)) for i in range(3))
    walks = made.content.walks
    assert first.labels.tolist() == [list(walks[0].actions)]
    assert first.labels[0, -1] == 0
    assert second.labels.tolist() == [list(walks[1].labels)]
    assert second.previous.tolist() == [[0, *walks[1].actions[:-1]]]
    (weights,) = third.weights.tolist()
    assert weights[1] == 0
    assert min(weights[:1] + weights[2:]) > 0
    np.testing.assert_allclose(first.progress[0].numpy(), np.arange(9) * 0.25 / 5, rtol=1e-6)


def test_a_mirror_swaps_frames_turns_and_words(tmp_path: Path) -> None:
    write_walks(tmp_path / "sets", "R2R", instructions=["Turn left, then right.", "Go left."])
    plain, seen = (Made(tmp_path, mirror=share).samples().sample(1, random.Random(0)) for share in (0.0, 1.0))
    for frames_, expected in zip(seen.frames, plain.frames, strict=True):
        assert isinstance(frames_, torch.Tensor)
        assert isinstance(expected, torch.Tensor)
        np.testing.assert_array_equal(frames_, expected.numpy()[:, :, ::-1])
    turned = np.array([0, 1, 3, 2])
    np.testing.assert_array_equal(seen.labels, turned[plain.labels])
    np.testing.assert_array_equal(seen.previous, turned[plain.previous])
    known = Made(tmp_path).learner.words
    assert {2, 3} <= {*plain.labels[0].tolist(), *plain.previous[0].tolist()}
    assert [words.tolist() for words in seen.words] == [
        known.numbered(text).tolist() for text in ("Turn right, then left.", "Go right.")
    ]
    for same in ("weights", "progress"):
        assert torch.equal(getattr(seen, same), getattr(plain, same))


@pytest.mark.slow
def test_some_walks_are_mirrored(made: Made) -> None:
    samples = Made(made.options.trajectories.parent, mirror=0.5).samples()
    first = made.samples().sample(0, random.Random(0)).labels.tolist()
    found = [samples.sample(0, random.Random(seed)).labels.tolist() == first for seed in range(200)]
    assert 70 < sum(found) < 130


def test_no_mirror_for_words_that_are_not_known(tmp_path: Path) -> None:
    write_released(tmp_path)
    family, chosen = Whole(VLNCE), options(tmp_path, str(tmp_path / "cma.pth"), mirror=0.5)
    learner = family.load(tmp_path / "cma.pth", chosen, family.placement(chosen, CPU))
    content = family.read_set(tmp_path / "sets/R2R", chosen)
    with pytest.raises(UsageError, match="--mirror: swaps words, and the checkpoint reads tokens of R2R"):
        family.samples([content], learner, tmp_path / "cma.pth", chosen, None)


def test_changes_weigh_more() -> None:
    found = inflection_weights(np.array([1, 1, 2, 2, 2, 1, 0]), 3.2)
    np.testing.assert_allclose(found, [3.2, 1, 3.2, 1, 1, 3.2, 3.2])


def test_padding_and_neighbors_change_no_loss(made: Made) -> None:
    """The loss of a batch is the mean over instructions of what they cost alone."""
    samples = made.samples()
    alone = [
        made.family.loss(made.learner, made.family.collate([samples.sample(i, random.Random(0))])).item()
        for i in range(3)
    ]
    assert made.family.loss(made.learner, made.batch()).item() == pytest.approx(np.mean(alone), abs=1e-5)


@pytest.mark.parametrize("checkpoint", ["preset:cma-tiny", "preset:seq2seq-tiny"])
@pytest.mark.parametrize(("counts", "together"), [((2, 2, 2), 2), ((4, 2, 6), 2), ((3, 3, 3), 3), ((1, 2, 3), 1)])
def test_instructions_about_one_walk_share_its_frames(
    tmp_path: Path, checkpoint: str, counts: tuple[int, ...], together: int
) -> None:
    """Rows that see a frame together cost what they cost one by one, and teach the same."""
    write_walks(tmp_path / "sets", "R2R")
    made, given = Made(tmp_path, checkpoint), []
    samples = [made.samples().sample(i, random.Random(0)) for i in range(3)]
    words = [[torch.randint(1, 6, (5 + i,)) for i in range(count)] for count in counts]

    def cost(shares: bool) -> tuple[float, list[torch.Tensor]]:
        learner = made.load()
        chosen = [
            replace(sample, words=own, walk_of=torch.zeros(len(own), dtype=torch.long))
            for sample, own in zip(samples, words, strict=True)
        ]
        batch = made.family.collate(chosen)
        learner.net.register_forward_pre_hook(lambda _, args: given.append(args[0].together))
        if not shares:  # every instruction about a walk of its own, which shows the same frames
            for name in ("previous", "labels", "weights", "progress", "rows"):
                batch[name] = batch[name][batch["walk_of"]]
            batch["walk_of"] = torch.arange(sum(counts))
        loss = made.family.loss(learner, batch)
        loss.backward()
        return loss.item(), [each.grad for each in learner.parameters() if each.grad is not None]

    (one, gradients), (other, expected) = cost(shares=True), cost(shares=False)
    assert given == [together, 1]
    assert one == pytest.approx(other, abs=1e-6)
    for each, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(each, wanted, rtol=1e-3, atol=1e-6)


def test_the_agent_sees_what_was_trained_on(made: Made) -> None:
    """Every fifth pixel of the benchmark's frames is the frame that is collected."""
    views = made.learner.whole.views
    noise = np.random.default_rng(0)
    rgb = noise.integers(0, 256, (480, 640, 3), dtype=np.uint8)
    depth = noise.random((480, 640), dtype=np.float32) * 10
    large = frames(Observation("", 0, rgb=rgb, depth=depth), views)
    small = frames(Observation("", 0, rgb=rgb[2::5, 2::5], depth=depth[2::5, 2::5]), views)
    for one, other in zip(large, small, strict=True):
        assert torch.equal(one, other)
    assert large[0].shape == (48, 64, 3)
    expected = rgb[2::5, 2::5][:2, :2].mean(axis=(0, 1))
    np.testing.assert_allclose(large[0][0, 0].numpy(), expected, atol=0.51)


def test_kept_features_and_kept_frames_are_exact(made: Made, tmp_path: Path) -> None:
    made.learner = made.load(tunable_parts=FROZEN)
    plain = made.family.loss(made.learner, made.batch()).item()
    features = made.family.features(made.learner, CPU)
    batch = made.batch(lambda key: None)
    found = batch["frames"]
    encoded = torch.cat([features.encode(features.tower, each[None].to(features.dtype)) for each in found.pixels])
    assert encoded.shape[1:] == features.shape
    batch["frames"] = [encoded[order] for order in found.order]
    assert made.family.loss(made.learner, batch).item() == pytest.approx(plain, abs=1e-5)
    again = made.family.features(made.load(tunable_parts=FROZEN), CPU)
    assert again.fingerprint == features.fingerprint
    next(features.tower.parameters()).data.add_(1)
    assert made.family.features(made.learner, CPU).fingerprint != features.fingerprint


def test_statistics_of_batch_norm_make_other_features() -> None:
    tower = torch.nn.BatchNorm2d(2)
    before = fingerprint(tower, CPU, (), ())
    tower.get_buffer("running_mean").add_(1)
    assert fingerprint(tower, CPU, (), ()) != before


def test_packed_frames_are_those_of_the_files(made: Made, tmp_path: Path) -> None:
    expected = made.batch()["frames"]
    made.options = replace(made.options, packed=tmp_path / "packed")
    for _ in range(2):
        for one, other in zip(made.batch()["frames"], expected, strict=True):
            assert torch.equal(one, other)
    (file,) = (tmp_path / "packed").glob("*.frames")
    assert file.stat().st_size == 19 * 48 * 64 * 4


def test_packed_features_are_those_of_the_frames(made: Made, tmp_path: Path) -> None:
    """With frozen encoders loss and gradients are the same; other weights have a file of their own."""
    plain = made.batch()["frames"]
    made.options = replace(made.options, packed=tmp_path / "packed", tunable_parts=FROZEN)
    losses, gradients = [], []
    for packed in (True, False):
        learner = made.learner = made.load(packed=made.options.packed, tunable_parts=FROZEN)
        for name, parameter in learner.named_parameters():
            parameter.requires_grad_(rule_of(TABLE, name).part in FROZEN)
        batch = made.batch() if packed else {**made.batch(), "frames": plain}
        assert packed == (not isinstance(batch["frames"], tuple))
        loss = made.family.loss(learner, batch)
        loss.backward()
        losses.append(loss.item())
        gradients.append({name: each.grad for name, each in learner.named_parameters() if each.grad is not None})
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert gradients[0].keys() == gradients[1].keys()
    assert not any("cnn" in name for name in gradients[0])
    for one, other in zip(gradients[0].values(), gradients[1].values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert made.family.stretches(made.learner, cached=False).start is made.learner.net.instruction_encoder
    assert len(list((tmp_path / "packed").glob("*.frames"))) == 1
    for changes in ({"progress_weight": 1.0}, {"seed": 1}):  # other trainings from the same encoders
        made.options = replace(made.options, **changes)
        made.learner = made.load(**changes)
        made.learner.net.rgb_encoder.spatial_embeddings.weight.data.add_(1)  # what was trained behind them
        made.batch()
    assert len(list((tmp_path / "packed").glob("*.frames"))) == 1
    next(made.learner.net.rgb_encoder.cnn.parameters()).data.add_(1)
    made.batch()
    assert len(list((tmp_path / "packed").glob("*.frames"))) == 2


@pytest.mark.parametrize(
    ("fields", "options_", "expected"),
    [
        ({"distances": None}, {"progress_weight": 1.0}, "annotations.json: distances: the progress monitor needs"),
        ({"distances": [1.0]}, {}, "field 'distances': expected meters for every frame"),
        ({"labels": [1, 2]}, {}, "field 'labels': expected an action from 0 to 3 for every frame"),
        ({"tokens": [[1], "x"]}, {}, "field 'tokens': expected a list of numbers for every instruction"),
    ],
)
def test_sets_that_lack_something(
    tmp_path: Path, fields: dict[str, Any], options_: dict[str, Any], expected: str
) -> None:
    write_walks(tmp_path / "sets", "R2R", **fields)
    with pytest.raises(UsageError, match=re.escape(expected)):
        Made(tmp_path, **options_).samples()


def test_walks_without_depth(made: Made, tmp_path: Path) -> None:
    (tmp_path / "sets/R2R/images/scan_r2r_000001/depth/003.png").unlink()
    with pytest.raises(UsageError, match=r"expected 6 depth images, found 5; collect with --depth"):
        made.family.read_set(tmp_path / "sets/R2R", made.options)


def test_tokens_of_another_vocabulary(tmp_path: Path) -> None:
    write_released(tmp_path)
    path = tmp_path / "sets/R2R/annotations.json"
    path.write_text(path.read_text().replace("[7, 2,", "[7, 40,"))
    family, chosen = Whole(VLNCE), options(tmp_path, str(tmp_path / "cma.pth"))
    learner = family.load(tmp_path / "cma.pth", chosen, family.placement(chosen, CPU))
    content = family.read_set(tmp_path / "sets/R2R", chosen)
    (samples,) = family.samples([content], learner, tmp_path / "cma.pth", chosen, None)
    with pytest.raises(UsageError, match="tokens: up to 40, the checkpoint knows 40"):
        samples.sample(0, random.Random(0))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gradient_checkpointing": True}, "--gradient-checkpointing: a recurrent policy has no blocks"),
        ({"dtype": "bfloat16"}, "--dtype bfloat16: these networks compute in float32"),
        ({"progress_weight": -1.0}, "--progress-weight -1.0: expected 0 or more"),
        ({"mirror": 1.5}, "--mirror 1.5: expected 0 to 1"),
        ({"feature_cache": Path("c"), "mirror": 0.5, "tunable_parts": ("cross_modal",)}, "leave --mirror out"),
        ({"inflection_weight": 0.0}, "--inflection-weight 0.0: expected a number above 0"),
        (
            {"feature_cache": Path("c"), "tunable_parts": ("depth_encoder",)},
            "keeps what both encoders make of a frame",
        ),
        ({"feature_cache": Path("c"), "tunable_parts": ("rgb_encoder",)}, "rgb_encoder is trained"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)):
        options(tmp_path, **changes).check()


def test_rxr_checkpoints_do_not_train(tmp_path: Path) -> None:
    released.write_tiny(tmp_path / "rxr.pth", rxr=True)
    with pytest.raises(UsageError, match="reads BERT features of RxR"):
        Whole(VLNCE).config(Source("checkpoint", "rxr.pth", tmp_path / "rxr.pth"), options(tmp_path))


@pytest.mark.slow
def test_the_published_sizes_are_planned() -> None:
    planned = plan(VLNCEPlanning(model="cma", gpus="1x24GB"))
    assert planned.parts["rgb_encoder"] == 23_508_032  # torchvision's ResNet-50 without its head
    assert planned.fits


@pytest.mark.parametrize(
    ("node", "field", "value", "expected"),
    [
        ("network", "state_size", 0, "network.state_size: input should be greater than or equal to 1"),
        ("network", "state_size", None, "network.state_size: input should be a valid integer"),
        ("network", "kind", "lstm", "network.kind: input should be 'cma' or 'seq2seq'"),
        ("network", "state_size", 64, "the weights are not those of the model in config.json"),
        ("views", "frame", [96], "views.frame.1: field required"),
        ("expects", "hfov", "wide", "expects.hfov: input should be a valid number"),
        ("network", "color", 1, "network.color: unexpected keyword argument"),
    ],
)
def test_configs_that_are_wrong(made: Made, node: str, field: str, value: Any, expected: str) -> None:
    path = made.base / "config.json"
    config = json.loads(path.read_text())
    config[node][field] = value
    path.write_text(json.dumps(config))
    with pytest.raises(UsageError, match=re.escape(expected)):
        load(made.base)


def test_who_can_read_a_config_can_read_the_weights(tmp_path: Path) -> None:
    Whole(VLNCE).create("cma-tiny", tmp_path / "base", ["Walk to the red chair."], 0)
    assert len({path.stat().st_mode for path in (tmp_path / "base").iterdir()}) == 1
