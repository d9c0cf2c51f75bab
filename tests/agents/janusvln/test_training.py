"""The recorded training samples of the published code: labels, loss, gradients, and a batch without its defect."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from agents.common.decoders.placeholders import IGNORED
from agents.janusvln import network as checkpoint
from agents.janusvln.network import JanusVLN, part_of, resize
from tests.agents.janusvln.tiny import IMAGE, tiny_frames, tiny_model
from tests.agents.recorded import traces, whole

TOKEN = 912  # the recorded tokenizer's image placeholder


def frames_of(goldens: Path, sample: dict[str, Any]) -> Tensor:
    shown = [
        resize(np.asarray(Image.open(goldens / "train_data" / name).convert("RGB"))) for name in sample["files"]
    ]
    return torch.from_numpy(np.stack(shown))


def ids_and_labels(sample: dict[str, Any]) -> tuple[list[int], list[int]]:
    """The sample's ids with one placeholder per image, and their labels."""
    expanded = whole(sample["input_ids_rle"])
    labels = [IGNORED] * len(expanded)
    for position, label in zip(sample["supervised_positions"], sample["labels"], strict=True):
        labels[position] = label
    assert [label for label in labels if label != IGNORED] == sample["labels"]
    ids, kept = [], []
    for token, run in groupby(zip(expanded, labels, strict=True), key=lambda pair: pair[0]):
        pairs = list(run)
        shown = pairs[:1] if token == TOKEN else pairs
        ids += [token for token, _ in shown]
        kept += [label for _, label in shown]
    return ids, kept


@pytest.fixture(scope="module")
def trained(goldens: Path) -> JanusVLN:
    """As it trains with vision=0 mlp=1 llm=1."""
    model = checkpoint.load(goldens / "checkpoint").train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part_of(name) in ("mm_mlp", "mm_llm", "geometry_merger"))
    return model


def check_sample(goldens: Path, model: JanusVLN, sample: dict[str, Any]) -> None:
    model.zero_grad()
    ids, labels = ids_and_labels(sample)
    seen = frames_of(goldens, sample)
    found = model([ids], [seen], [labels])
    assert found.loss is not None
    assert found.logits is not None
    assert found.loss.item() == pytest.approx(sample["loss"], abs=1e-4)
    with np.load(goldens / "traces.npz") as arrays:
        known = arrays["train_answer_logits"][sample["npz_row"]]
    answer = found.logits[0, sample["supervised_positions"][0] - 1].detach()
    np.testing.assert_allclose(answer, known, atol=1e-4, rtol=0)
    found.loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, norm in sample["grad_l2"].items():
        gradient = gradients[name]
        assert (gradient is None) == (norm is None), name
        if gradient is not None:
            assert gradient.norm().item() == pytest.approx(norm, rel=1e-3), name
    total = torch.stack([each.norm() for each in gradients.values() if each is not None]).norm()
    assert total.item() == pytest.approx(sample["grad_l2_total"], rel=1e-3)


@pytest.mark.parametrize("index", [1, 2])
def test_recorded_samples(goldens: Path, trained: JanusVLN, index: int) -> None:
    """One image, and four."""
    check_sample(goldens, trained, traces(goldens)["training"]["samples"][index])


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, *range(3, 11)])
def test_all_other_recorded_samples(goldens: Path, trained: JanusVLN, index: int) -> None:
    check_sample(goldens, trained, traces(goldens)["training"]["samples"][index])


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_recorded_batch_has_the_loss_of_its_samples(goldens: Path, checkpointing: bool) -> None:
    """Samples with 9 and 4 images, which the published code cannot put into one batch. The mean is over labels, of
    which each sample has as many."""
    model = checkpoint.load(goldens / "checkpoint").train()
    if checkpointing:
        model.enable_checkpointing()
    samples = [traces(goldens)["training"]["samples"][index] for index in (0, 2)]
    pairs = [ids_and_labels(sample) for sample in samples]
    frames = [frames_of(goldens, sample) for sample in samples]
    found = model([ids for ids, _ in pairs], frames, [labels for _, labels in pairs], want_logits=False)
    assert found.loss is not None
    counts = [len(sample["labels"]) for sample in samples]
    mean = sum(sample["loss"] * count for sample, count in zip(samples, counts, strict=True)) / sum(counts)
    assert found.loss.item() == pytest.approx(mean, abs=1e-4)
    found.loss.backward()


def test_gradients_of_a_small_network_by_literal_numbers() -> None:
    model, frames = tiny_model(), tiny_frames(3)
    ids = [[1, IMAGE, 5, IMAGE, 7, 9], [2, IMAGE, 3, 4]]
    labels = [[IGNORED] * 4 + [7, 9], [IGNORED] * 2 + [3, 4]]
    found = model(ids, [frames[:2], frames[2:]], labels)
    assert found.loss is not None
    assert found.loss.item() == pytest.approx(6.233236, abs=1e-4)
    found.loss.backward()
    known = {
        "visual.blocks.0.attn.qkv.weight": 5.660270,
        "visual.merger.mlp.0.weight": 5.636268,
        "merger.mlp.0.weight": 1.125508,
        "model.layers.0.self_attn.q_proj.weight": 1.990739,
        "lm_head.weight": 2.193018,
    }
    for name, norm in known.items():
        gradient = model.get_parameter(name).grad
        assert gradient is not None
        assert gradient.norm().item() == pytest.approx(norm, rel=1e-3), name
    assert all(parameter.grad is None for parameter in model.vggt.parameters())


@pytest.mark.parametrize("frozen", [False, True])
def test_recomputing_activations_changes_no_gradient(frozen: bool) -> None:
    ids, labels = [[1, IMAGE, 5, 7]], [[IGNORED] * 2 + [5, 7]]
    norms = []
    for checkpointing in (False, True):
        model = tiny_model().train()
        model.visual.blocks.requires_grad_(not frozen)
        if checkpointing:
            model.enable_checkpointing()
        loss = model(ids, [tiny_frames(1)], labels, want_logits=False).loss
        assert loss is not None
        loss.backward()
        norms.append([p.grad.norm().item() for p in model.parameters() if p.grad is not None])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
