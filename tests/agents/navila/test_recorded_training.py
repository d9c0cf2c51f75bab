"""Samples, losses, gradients and groups against what the published training did; needs the recordings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from agents.common.decoders.placeholders import IGNORED
from agents.common.packing.samples import Sample, collate
from agents.navila import network
from agents.navila.agent import Prompts
from agents.navila.family import NaVILATrains
from agents.navila.network import NaVILA
from agents.navila.options import NaVILAInputs, NaVILATraining
from agents.navila.samples import NaVILASet, QuestionDataset, read_set
from tests.agents.recorded import arrays, traces, whole
from vlnbench.training.parts import freeze, groups

EXACT, GRADIENTS = 1e-4, 1e-3
"""Tolerances of losses, absolute, and of gradient norms, relative, as the recordings suggest."""


@pytest.fixture
def model(goldens: Path) -> NaVILA:
    return network.load(goldens / "checkpoint", dtype=torch.float32, attn="eager").train()


@pytest.fixture(scope="module")
def sets(goldens: Path) -> list[NaVILASet]:
    return [read_set(goldens / "train_data" / name, 8) for name in ("R2R", "RxR")]


@pytest.fixture(scope="module")
def samples(goldens: Path, sets: list[NaVILASet]) -> list[Sample]:
    prompts = Prompts(network.load_tokenizer(goldens / "checkpoint"), NaVILAInputs(), 8)
    datasets = [QuestionDataset(each, prompts, 384) for each in sets]
    return [each.sample(number, random.Random(0)) for each in datasets for number in range(len(each))]


def options(*parts: str, **changes: Any) -> NaVILATraining:
    return NaVILATraining(checkpoint="", out=Path(), tunable_parts=parts, **changes)


def live(name: str) -> str:
    """A parameter's name in the published network."""
    first = name.split(".")[0]
    return (
        f"vision_tower.{name}" if first == "vision_tower" else name if first == "mm_projector" else f"llm.{name}"
    )


def gradients(model: NaVILA, samples: Sequence[Sample]) -> tuple[float, dict[str, float]]:
    """The loss of a batch, and the norm of every gradient that there is."""
    model.zero_grad(set_to_none=True)
    loss = NaVILATrains().loss(model, collate(samples))
    loss.backward()  # type: ignore[no-untyped-call]
    norms = {
        live(name): float(each.grad.norm()) for name, each in model.named_parameters() if each.grad is not None
    }
    return float(loss.detach()), norms


def total(norms: Sequence[float]) -> float:
    return float(torch.tensor(norms).norm())


def test_samples_are_those_of_the_published_dataset(
    goldens: Path, sets: list[NaVILASet], samples: list[Sample]
) -> None:
    recorded = traces(goldens)["training"]["samples"]
    assert [each.windows for each in sets] == [5, 2]
    assert sets[0].counts["questions whose frames are missing, which teach nothing"] == 1
    for each, sample in zip(recorded, samples, strict=True):
        content = sets[each["set"] == "RxR"]
        asked = content.asked(each["index"] - (5 if each["set"] == "RxR" else 0))
        if asked.answers:
            opened = [str(path.relative_to(goldens / "train_data")) for path in asked.paths if path]
            assert opened == each["files_opened"]
        assert sample.input_ids == whole(each["input_ids_rle"])
        labels = dict(zip(each["supervised_positions"], each["labels"], strict=True))
        assert sample.labels == [labels.get(place, IGNORED) for place in range(each["input_len"])]
        assert isinstance(sample.images, torch.Tensor)
        for image, (mean, std) in zip(sample.images, each["pixel_stats"], strict=True):
            assert float(image.mean()) == pytest.approx(mean, abs=1e-6)
            assert float(image.std()) == pytest.approx(std, abs=1e-6)


@pytest.mark.slow
def test_losses_and_gradients_are_those_that_were_recorded(
    goldens: Path, model: NaVILA, samples: list[Sample]
) -> None:
    training = traces(goldens)["training"]
    freeze(model, NaVILATrains(), options("vision_tower", "mm_projector", "language_model"))
    for each, sample in zip(training["samples"], samples, strict=True):
        if each["loss"] is None:
            continue
        loss, norms = gradients(model, [sample])
        assert loss == pytest.approx(each["loss"], abs=EXACT)
        wanted = {
            name: norm
            for name, norm in zip(training["parameter_names"], each["grad_l2"], strict=True)
            if norm is not None
        }
        assert norms.keys() == wanted.keys()
        for name, norm in wanted.items():
            assert norms[name] == pytest.approx(norm, rel=GRADIENTS, abs=1e-7), name
        with torch.no_grad():
            logits = model([sample.input_ids], [sample.images], [sample.labels], at_labels=True).logits
        first = torch.from_numpy(arrays(goldens)["train_answer_logits"][each["npz_row"]])
        torch.testing.assert_close(logits[0], first, atol=EXACT, rtol=0)
    for each in training["batches"]:
        loss, norms = gradients(model, [samples[number] for number in each["samples"]])
        assert loss == pytest.approx(each["loss"], abs=EXACT)
        assert total(list(norms.values())) == pytest.approx(each["grad_l2_total"], rel=GRADIENTS)


@pytest.mark.slow
def test_parts_are_those_of_the_published_flags(goldens: Path, model: NaVILA, samples: list[Sample]) -> None:
    training = traces(goldens)["training"]
    flags = {"vision": "vision_tower", "projector": "mm_projector", "llm": "language_model"}
    for key, each in training["flag_combinations"].items():
        parts = [flags[pair.split("=")[0]] for pair in key.split() if pair.endswith("=1")]
        if not parts:
            continue
        freeze(model, NaVILATrains(), options(*parts))
        loss, norms = gradients(model, [samples[training["flag_sample"]]])
        assert loss == pytest.approx(each["loss"], abs=EXACT)
        names = training["parameter_names"]
        reached = [names[number] for number in each["trainable"] if number not in each["no_gradient"]]
        assert sorted(norms) == sorted(reached)
        assert total(list(norms.values())) == pytest.approx(each["grad_l2_total"], rel=GRADIENTS)
        for number, norm in each["grad_l2"].items():
            assert norms[names[int(number)]] == pytest.approx(norm, rel=GRADIENTS, abs=1e-7)


def test_weight_decay_reaches_what_the_published_optimizer_decays(goldens: Path, model: NaVILA) -> None:
    """But for parts of the tower that nothing looks at, which never train here."""
    training = traces(goldens)["training"]
    chosen = options("vision_tower", "mm_projector", "language_model")
    freeze(model, NaVILATrains(), chosen)
    found = {live(name): each.decays for each in groups(model, NaVILATrains(), chosen) for name in each.names}
    wanted = {
        training["parameter_names"][number]: group["weight_decay"] > 0
        for group in training["optimizer_groups"]["mm_projector_lr none, all tuned"]
        for number in group["parameters"]
    }
    assert found == {name: decays for name, decays in wanted.items() if name in found}
    unused = training["flag_combinations"]["vision=1 projector=1 llm=1"]["no_gradient"]
    assert len(wanted) - len(found) == len(unused) == 29
