from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from agents.common.decoders.placeholders import IGNORED, IMAGE, MEMORY
from agents.common.towers.siglip import network_input, resize
from agents.streamvln.network import StreamVLN, parse_config
from agents.streamvln.options import part_of
from tests.agents.recorded import traces
from tests.agents.streamvln.frames import frame
from tests.agents.streamvln.tiny import tiny_config, tiny_images, tiny_model, tiny_raw
from vlnbench.errors import UsageError

TINY = tiny_model()


def test_published_size_part_by_part() -> None:
    raw = tiny_raw(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
        mm_hidden_size=1152,
        mm_vision_tower="google/siglip-so400m-patch14-384",
    )
    del raw["vision_config"]
    with torch.device("meta"):
        model = StreamVLN(parse_config(raw, "config.json"))
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        counts[part_of(name)] += parameter.numel()
    assert counts == {
        "mm_vision_tower": 397_747_744,
        "mm_mlp_adapter": 16_980_992,
        "mm_language_model": 7_615_616_512,
    }


def test_tower_is_built_whatever_was_trained() -> None:
    with torch.device("meta"):
        model = StreamVLN(tiny_config(mm_tunable_parts=""))
    assert {part_of(name) for name, _ in model.named_parameters()} == {
        "mm_vision_tower",
        "mm_mlp_adapter",
        "mm_language_model",
    }


def test_recorded_image_features(goldens: Path, recorded_model: StreamVLN) -> None:
    known = traces(goldens)["vision"]
    arrays = np.load(goldens / "traces.npz")
    frames = [frame(entry["frame_seed"], entry["frame_episode"], entry["step"]) for entry in known]
    pixels = network_input([resize(image, 384) for image in frames])
    with torch.inference_mode():
        tower = recorded_model.patch_features(pixels).numpy()
        pooled = recorded_model.project(recorded_model.patch_features(pixels)).numpy()
    np.testing.assert_allclose(tower[0], arrays["vision0_tower"], atol=2e-5, rtol=0)
    np.testing.assert_allclose(pooled[0], arrays["vision0_pooled"], atol=2e-5, rtol=0)
    for i, entry in enumerate(known):
        assert tower[i].mean() == pytest.approx(entry["tower_mean"], abs=1e-5)
        for patch, values in entry["tower_first8"].items():
            np.testing.assert_allclose(tower[i, int(patch), :8], values, atol=2e-5, rtol=0)
        for token, values in entry["pooled_first8"].items():
            np.testing.assert_allclose(pooled[i, int(token), :8], values, atol=2e-5, rtol=0)


def recorded_batch(folder: Path, indices: list[int]) -> tuple[Any, Any, Any]:
    samples = [traces(folder)["training"]["samples"][i] for i in indices]
    images = [
        network_input(
            [
                resize(np.asarray(Image.open(folder / "train_data" / name).convert("RGB")), 384)
                for name in sample["files_in_order"]
            ]
        )
        for sample in samples
    ]
    return [sample["input_ids"] for sample in samples], images, [sample["labels"] for sample in samples]


@pytest.mark.parametrize("number", [0, 1, 5])  # a first window, one with memory, both in one batch
def test_recorded_training_batch(goldens: Path, recorded_model: StreamVLN, number: int) -> None:
    known = traces(goldens)["training"]["batches"][number]
    recorded_model.zero_grad()
    output = recorded_model(*recorded_batch(goldens, known["sample_indices"]))
    assert list(output.logits.shape) == known["logits_shape"]
    assert output.loss.item() == pytest.approx(known["loss"], abs=1e-5)
    output.loss.backward()
    gradients = {name: parameter.grad for name, parameter in recorded_model.named_parameters()}
    for name, norm in known["grad_l2"].items():
        gradient = gradients[name]
        assert (gradient is None) == (norm is None)
        assert gradient is None or gradient.norm().item() == pytest.approx(norm, rel=1e-4)
    total = math.hypot(*(gradient.norm().item() for gradient in gradients.values() if gradient is not None))
    assert total == pytest.approx(known["grad_l2_total"], rel=1e-4)
    recorded_model.zero_grad()


SAMPLES: tuple[list[list[int]], list[torch.Tensor], list[list[int]]] = (
    [[1, MEMORY, 2, IMAGE, 3, IMAGE, 4, 5], [6, IMAGE, 7]],
    [tiny_images(4, seed=1), tiny_images(1, seed=2)],
    [[IGNORED, IGNORED, 2, IGNORED, 3, IGNORED, 4, 5], [6, IGNORED, 7]],
)


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_a_padded_batch_is_its_samples(attn: str) -> None:
    model = tiny_model(attn)
    ids, images, labels = SAMPLES
    together = model(ids, images, labels)
    assert together.logits.shape == (2, 5 + 4 * 9, 50)
    total, count = 0.0, 0
    for i in range(2):
        alone = model(ids[i : i + 1], images[i : i + 1], labels[i : i + 1])
        length = alone.logits.shape[1]
        torch.testing.assert_close(together.logits[i, :length], alone.logits[0], atol=2e-5, rtol=0)
        supervised = sum(label != IGNORED for label in labels[i][1:])
        total, count = total + alone.loss.item() * supervised, count + supervised
    assert together.loss.item() == pytest.approx(total / count, abs=1e-5)


def test_loss_alone_is_the_same_loss() -> None:
    whole, fast = TINY(*SAMPLES), TINY(*SAMPLES, want_logits=False)
    assert fast.logits is None
    assert torch.equal(whole.loss, fast.loss)
    assert TINY(*SAMPLES[:2]).loss is None


def test_weights_are_of_the_label_that_is_predicted() -> None:
    ids, images, labels = SAMPLES
    alike = [[2.5] * len(row) for row in labels]
    assert TINY(*SAMPLES, weights=alike).loss.item() == pytest.approx(TINY(*SAMPLES).loss.item(), rel=1e-6)
    for i, row in enumerate(labels):
        for k, label in enumerate(row):
            if label == IGNORED or k == 0:
                continue
            only = [[IGNORED] * len(other) for other in labels]
            only[i][k] = label
            weights = [[float(i == j and k == at) for at in range(len(other))] for j, other in enumerate(labels)]
            weighted = TINY(ids, images, labels, weights=weights).loss.item()
            assert weighted == pytest.approx(TINY(ids, images, only).loss.item(), rel=1e-5)


def test_memory_frames_come_first_and_in_order() -> None:
    ids = [1, MEMORY, 2, IMAGE]
    features = torch.arange(3 * 9 * 32, dtype=torch.float32).view(3, 9, 32)
    expanded, labels = TINY.expand(ids, 3)
    embedded = TINY.embed(expanded, features)
    assert torch.equal(embedded[1:19], features[:2].flatten(0, 1))
    assert torch.equal(embedded[20:29], features[2])
    assert torch.equal(embedded[19], TINY.model.embed_tokens.weight[2])
    assert labels.tolist() == [IGNORED] * 29


@given(
    st.lists(st.integers(0, 49), min_size=1, max_size=8),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_expanded_length(text: list[int], memory: int, current: int) -> None:
    ids = text + [MEMORY] * (memory > 0) + [IMAGE] * current
    expanded, labels = TINY.expand(ids, memory + current, labels=ids)
    assert len(expanded) == len(labels) == len(text) + 9 * (memory + current)
    assert expanded[: len(text)].tolist() == text
    assert (expanded < 0).sum() == 9 * (memory + current)


@pytest.mark.parametrize(
    ("ids", "images", "message"),
    [
        ([1, IMAGE], 0, "0 images for 1 image and 0 memory"),
        ([1, IMAGE], 2, "2 images for 1 image and 0 memory"),
        ([1, MEMORY, IMAGE], 1, "1 images for 1 image and 1 memory"),
        ([MEMORY, MEMORY, IMAGE], 3, "2 memory placeholders"),
        ([IMAGE, MEMORY], 3, "must come before"),
    ],
)
def test_placeholders_that_do_not_match_the_images(ids: list[int], images: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TINY.expand(ids, images)


@pytest.mark.parametrize("size", [48, 96, 150])
def test_another_image_size_interpolates_positions_as_siglip_does(size: int) -> None:
    model = tiny_model()
    pixels = tiny_images(2)[:, :, :1, :1].expand(2, 3, size, size)
    embeddings = model.tower.get_submodule("embeddings")
    with torch.no_grad():
        expected = embeddings(pixels, interpolate_pos_encoding=True)
        model.resize_images(size)
        torch.testing.assert_close(embeddings(pixels), expected)
        assert model.project(model.patch_features(pixels)).shape == (
            2,
            model.config.image_tokens,
            model.config.hidden_size,
        )
    assert all(parameter.requires_grad for parameter in embeddings.parameters())


def test_checkpointing_reaches_both_transformers_and_keeps_gradients() -> None:
    plain, fast = tiny_model().train(), tiny_model().train()
    fast.enable_checkpointing()
    marked = {name for name, module in fast.named_modules() if getattr(module, "gradient_checkpointing", False)}
    assert {"model.layers.1", "model.vision_tower.vision_tower.vision_model.encoder.layers.1"} <= marked
    for model in (plain, fast):
        model(*SAMPLES, want_logits=False).loss.backward()
    for (name, one), other in zip(plain.named_parameters(), fast.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None) == ("post_layernorm" in name)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad)


def test_buffers_can_be_filled_after_the_meta_device() -> None:
    with torch.device("meta"):
        model = StreamVLN(tiny_config())
    model.fill_buffers("cpu")
    for (name, filled), known in zip(model.named_buffers(), TINY.buffers(), strict=True):
        assert torch.equal(filled, known), name


@pytest.mark.parametrize(
    ("attn", "message"),
    [
        ("fast", "expected one of eager, sdpa, flash_attention_2"),
        ("flash_attention_2", "cannot be used here: .*lash"),
    ],
)
def test_attention_that_cannot_be_had(attn: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        StreamVLN(tiny_config(), attn)
    assert "\n" not in str(raised.value)


def test_a_frozen_tower_has_no_backward_pass() -> None:
    model = tiny_model().train()
    model.enable_checkpointing()
    assert model.patch_features(tiny_images(2)).requires_grad
    model.tower.requires_grad_(False)
    assert not model.patch_features(tiny_images(2)).requires_grad
    assert model.project(model.patch_features(tiny_images(2))).requires_grad
