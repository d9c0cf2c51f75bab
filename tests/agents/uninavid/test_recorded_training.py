"""Samples, losses, gradients and optimizer groups of the published training; needs the recordings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.common.decoders.placeholders import IMAGE, MEMORY
from agents.common.packing.samples import Sample, collate
from agents.common.sight.decoding import frames_of
from agents.common.sight.videos import drawn_frames, jittered
from agents.common.towers.eva import crop, network_input
from agents.uninavid import network
from agents.uninavid.agent import Prompts
from agents.uninavid.family import UniNaVidTrains
from agents.uninavid.network import UniNaVid
from agents.uninavid.options import PARTS, UniNaVidTraining
from agents.uninavid.samples import ConversationDataset, UniNaVidSet, read_set
from tests.agents.recorded import arrays, traces, whole
from tests.agents.uninavid.recordings import TOWER
from vlnbench.training.parts import freeze, groups

EXACT = 1e-4
TRAINED = ("mm_projector", "language_model")


@pytest.fixture(scope="module")
def model(goldens: Path, folder: Path) -> UniNaVid:
    return network.load(folder, vision_tower=goldens / TOWER, attn="eager", trust_pickle=True)


@pytest.fixture(scope="module")
def content(goldens: Path, tmp_path_factory: pytest.TempPathFactory) -> UniNaVidSet:
    made = tmp_path_factory.mktemp("set")
    (made / "conversations.json").symlink_to(goldens / "train_data" / "sampled.json")
    for name in ("nav_videos", "images"):
        (made / name).symlink_to(goldens / "train_data" / name)
    return read_set(made, every=2)


def options(*parts: str) -> UniNaVidTraining:
    return UniNaVidTraining(tunable_parts=parts, checkpoint="", out=Path("out"), trajectories=Path("sets"))


def recorded(goldens: Path) -> list[Any]:
    """Samples but the one whose file is missing: it is left out here, and replaced by another in the original."""
    found: list[Any] = traces(goldens)["training"]["samples"][:8]
    return found


def samples(goldens: Path, folder: Path, content: UniNaVidSet) -> list[Sample]:
    """All, drawn as recorded: of frames by Python's generator, of their colors by numpy's."""
    prompts = Prompts(network.load_tokenizer(folder))
    plain = ConversationDataset(content, prompts, 224, replace(options(*TRAINED), augment=False), None)
    found = []
    for number, each in enumerate(recorded(goldens)):
        rng = random.Random(each["python_seed"])
        sample = plain.sample(number, rng)
        if each["kind"] == "navigation":
            file = content.records[number].file
            assert file is not None
            shown, draws = frames_of(file), np.random.RandomState(each["numpy_seed"])
            rng = random.Random(each["python_seed"])
            chosen = drawn_frames(len(shown), rng) if len(shown) > 1 else [0]
            assert chosen == (each["video_frames_used"] or [0])
            frames = [jittered(shown[place], draws) if len(shown) > 1 else shown[place] for place in chosen]
            assert [place for place, frame in zip(chosen, frames, strict=True) if frame is not shown[place]] == [
                chosen[jitter["position"]] for jitter in each["jittered"] or ()
            ]
            for jitter in each["jittered"] or ():
                assert frames[jitter["position"]].mean() == pytest.approx(jitter["mean_after"], abs=1e-9)
            sample = replace(sample, images=network_input([crop(frame, 224) for frame in frames]))
        found.append(sample)
    return found


def test_samples_are_those_of_the_published_dataset(goldens: Path, folder: Path, content: UniNaVidSet) -> None:
    assert len(content.left_out) == 1
    for sample, each in zip(samples(goldens, folder, content), recorded(goldens), strict=True):
        navigates = each["kind"] == "navigation"
        placed = [
            (IMAGE if id_ == MEMORY else id_, label)
            for id_, label in zip(sample.input_ids, sample.labels, strict=True)
            if not (navigates and id_ == IMAGE)
        ]
        assert [id_ for id_, _ in placed] == whole(each["input_ids_rle"])
        supervised = [(place, label) for place, (_, label) in enumerate(placed) if label != -100]
        assert [place for place, _ in supervised] == each["supervised_positions"]
        assert [label for _, label in supervised] == each["labels"]
        assert isinstance(sample.images, torch.Tensor)
        assert list(sample.images.shape[-3:]) == each["image_shape"][-3:]
        assert float(sample.images.mean()) == pytest.approx(each["image"]["mean"], abs=1e-5)


def gradients(model: UniNaVid, samples: Sequence[Sample]) -> tuple[float, dict[str, float]]:
    """Loss, and the norm of the gradients by the recorded groups."""
    model.zero_grad()
    loss = model(**collate(samples)).loss
    loss.backward()
    sums: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            known = ("embed_tokens", "lm_head", "mm_projector")
            group = next((each for each in known if each in name), "lm_layers_and_norm")
            sums[group] = sums.get(group, 0) + float(parameter.grad.square().sum())
    return float(loss.detach()), {group: total**0.5 for group, total in sums.items()}


def test_losses_and_gradients_are_those_that_were_recorded(
    goldens: Path, folder: Path, content: UniNaVidSet, model: UniNaVid
) -> None:
    freeze(model, UniNaVidTrains(), options(*TRAINED))
    found = samples(goldens, folder, content)
    for number, (sample, each) in enumerate(zip(found, recorded(goldens), strict=True)):
        loss, norms = gradients(model, [sample])
        assert loss == pytest.approx(each["loss"], abs=EXACT), each["id"]
        for group, wanted in each["grad_l2"]["per_group"].items():
            if wanted is not None:
                assert norms.get(group, 0.0) == pytest.approx(wanted, rel=1e-3, abs=1e-9), (each["id"], group)
        with torch.no_grad():
            logits = model(**collate([sample]), at_labels=True).logits
        wanted = torch.from_numpy(arrays(goldens)["train_answer_logits"][number])
        torch.testing.assert_close(logits[0], wanted, atol=EXACT, rtol=0)
    for batch in traces(goldens)["training"]["batches"]:
        if 8 not in batch["samples"]:
            loss, _ = gradients(model, [found[number] for number in batch["samples"]])
            assert loss == pytest.approx(batch["loss"], abs=EXACT)


@pytest.mark.parametrize(
    ("flags", "parts"), [("default", TRAINED), ("tune_mm_mlp_adapter", ("mm_projector",)), ("all", PARTS)]
)
def test_parts_and_weight_decay_are_those_of_the_published_flags(
    goldens: Path, model: UniNaVid, flags: str, parts: Sequence[str]
) -> None:
    """Of the vision tower the published code gives no gradient; here it trains, with the published groups."""
    trains = UniNaVidTrains()
    freeze(model, trains, options(*parts))
    training = traces(goldens)["training"]
    names = training["parameter_names"]
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for group in groups(model, trains, options(*parts)):
        found[group.decays] |= set(group.names)
    key = "tune_vision_encoder" if flags == "all" else flags
    for group in training["optimizer_groups"][key]:
        assert found[bool(group["weight_decay"])] == {names[number] for number in group["parameters"]}
