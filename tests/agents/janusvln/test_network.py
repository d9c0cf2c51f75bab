"""The network: its parts against the recordings and against transformers, and a small one by literal numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as theirs

from agents.common.decoders.cache import TurnCache
from agents.common.qwen2_5_vl.decode import read, row_of
from agents.common.qwen2_5_vl.image import Grid, grid_of, patches, scaled
from agents.common.qwen2_5_vl.language import expand
from agents.common.towers.vggt import FrameCache
from agents.janusvln.network import JanusVLN, part_of, resize
from tests.agents.janusvln.tiny import IMAGE, tiny_config, tiny_frames, tiny_model, tiny_raw
from tests.agents.recorded import traces
from tests.agents.streamvln.frames import frame

CLOSE = {"atol": 1e-4, "rtol": 0.0}


def close(found: Tensor, known: Any, **tolerance: float) -> None:
    torch.testing.assert_close(found, torch.tensor(known), **{**CLOSE, **tolerance})


def seen(model: JanusVLN, frames: Tensor, cache: FrameCache) -> Tensor:
    """Geometry of each of the frames in the light of those before it, (frames, embeddings, hidden)."""
    return torch.cat([model.merger(model.geometry_features(each[None], [cache])) for each in frames])


@torch.inference_mode()
def test_recorded_frames(goldens: Path, recorded_model: JanusVLN) -> None:
    aggregator = recorded_model.vggt.aggregator
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with np.load(goldens / "traces.npz") as file:
        arrays = {name: file[name] for name in file.files if name.startswith("vision0")}
    for i, known in enumerate(traces(goldens)["vision"]):
        rgb = frame(known["frame_seed"], known["frame_episode"], known["step"])
        shown = torch.from_numpy(resize(rgb))[None]
        visual = recorded_model.visual.merger(recorded_model.tower_features(shown))[0]
        for token, values in known["visual"]["first8"].items():
            close(visual[int(token), :8], values)
        images = scaled(shown)
        tokens = aggregator.patch_embed((images - mean[:, None, None]) / std[:, None, None])[0]
        for token, values in known["dino_patch_tokens"]["first8"].items():
            close(tokens[int(token), :8], values)
        layers = list(aggregator.layers(images, [FrameCache()]))
        for layer, values in zip(layers, known["aggregator_layers_first_frame"], strict=True):
            close(layer[0, 0, :4], values["camera_token_first4"])
            close(layer[0, 5, :4], values["patch0_first4"])
            close(layer[0, 5, 32:36], values["patch0_global_first4"])
            assert float(layer.mean()) == pytest.approx(values["mean"], abs=1e-4)
        if i == 0:
            np.testing.assert_allclose(visual, arrays["vision0_visual"], **CLOSE)
            np.testing.assert_allclose(layers[-2][0], arrays["vision0_aggregator"], **CLOSE)


@torch.inference_mode()
def test_a_small_network_by_literal_numbers() -> None:
    model, frames = tiny_model(), tiny_frames(3)
    visual = model.visual.merger(model.tower_features(frames))
    close(visual[0, 0, :4], [-2.156319, 0.530365, 0.375187, -0.936326])
    close(visual[0, 14, :4], [-1.256197, 0.894225, -0.962221, 1.864769])
    geometry = seen(model, frames, FrameCache())
    close(geometry[0, 0, :4], [-2.455110, -3.268737, -2.626310, 1.166807])
    close(geometry[2, 14, :4], [-1.655221, 0.455911, -1.104802, -0.409284])
    ids, labels = [1, IMAGE, 5, IMAGE, 7, 9], [-100] * 4 + [7, 9]
    found = model([ids], [frames[:2]], [labels])
    assert found.logits is not None
    close(found.logits[0, -1, :4], [2.230419, 0.980243, -0.996524, -2.086350])
    assert float(found.loss) == pytest.approx(4.535857, abs=1e-4)


@torch.inference_mode()
def test_the_vision_tower_is_that_of_transformers() -> None:
    """Windows cut off at the right and at the bottom, one image smaller than a window."""
    model = tiny_model()
    config = Qwen2_5_VLConfig(**tiny_raw()).vision_config
    config._attn_implementation = "eager"
    other = theirs.Qwen2_5_VisionTransformerPretrainedModel(config).eval()
    other.load_state_dict(model.visual.state_dict())
    for height, width in ((84, 140), (28, 28), (168, 112)):
        shown = tiny_frames(2, height, width)
        cut = patches(shown)
        grid = torch.tensor([[1, height // 14, width // 14]] * 2)
        output = other(cut.flatten(0, 1), grid)
        known = getattr(output, "pooler_output", output)
        own = model.visual.merger(model.visual.features(cut, grid_of(height, width)))
        torch.testing.assert_close(own.flatten(0, 1), known, atol=2e-5, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("eager", [False, True])
def test_the_language_model_is_that_of_transformers(eager: bool) -> None:
    model = tiny_model(eager)
    config = Qwen2_5_VLConfig(**tiny_raw()).get_text_config()
    config._attn_implementation = "eager"
    other = theirs.Qwen2_5_VLTextModel(config).eval()
    other.load_state_dict(model.model.state_dict())
    ids, positions = expand([1, 2, IMAGE, 3, IMAGE, 4], [Grid(3, 5), Grid(2, 4)], IMAGE)
    embedded = model.model.embed_tokens(ids)[None]
    known = other(inputs_embeds=embedded, position_ids=positions[:, None], use_cache=False).last_hidden_state
    torch.testing.assert_close(model.model(embedded, positions[:, None]), known, atol=2e-5, rtol=0)


def test_positions_of_text_and_images() -> None:
    ids, positions = expand([7, IMAGE, 8, IMAGE, 9], [Grid(2, 3), Grid(3, 1)], IMAGE)
    assert ids.tolist() == [7, *[IMAGE] * 6, 8, *[IMAGE] * 3, 9]
    assert positions.tolist() == [
        [0, *[1] * 6, 4, *[5] * 3, 8],
        [0, 1, 1, 1, 2, 2, 2, 4, 5, 6, 7, 8],
        [0, 1, 2, 3, 1, 2, 3, 4, 5, 5, 5, 8],
    ]
    with pytest.raises(ValueError, match="1 images for 2 image placeholders"):
        expand([7, IMAGE, 8, IMAGE, 9], [Grid(2, 3)], IMAGE)


@torch.inference_mode()
def test_rows_of_different_length_decode_as_they_would_alone() -> None:
    """Twelve tokens one by one after the questions."""
    model = tiny_model()
    rows = [expand([1, 2, 3, *range(4, 4 + more)], [], IMAGE) for more in (0, 9, 4)]
    empty = torch.zeros(0, 16)

    def decode(batch: list[tuple[Tensor, Tensor]], steps: int) -> Tensor:
        seated = [row_of(None, *each) for each in batch]
        cache, hidden = TurnCache(model.config, len(batch), 3, empty), []
        for step in range(1 + steps):
            fed = [row.ids if step == 0 else torch.tensor([10 + step]) for row in seated]
            view, mask = cache.open(range(len(batch)), [len(ids) for ids in fed])
            padded = torch.nn.utils.rnn.pad_sequence(fed, batch_first=True)
            states = read(model, seated, padded, empty, view, mask)
            hidden.append(torch.stack([state[len(ids) - 1] for state, ids in zip(states, fed, strict=True)]))
            for row, ids in zip(seated, fed, strict=True):
                row.length += len(ids)
        return torch.stack(hidden, dim=1)

    together = decode(rows, 12)
    for i, (ids, _) in enumerate(rows):
        torch.testing.assert_close(decode([rows[i]], 12)[0], together[i], atol=1e-5, rtol=0)
        whole = expand([*ids.tolist(), *range(11, 23)], [], IMAGE)
        known = model.hidden([whole], empty)[0, len(ids) - 1 :]
        torch.testing.assert_close(together[i], known, atol=1e-5, rtol=0)


def test_the_first_8_and_the_last_48_frames_are_kept() -> None:
    cache = FrameCache()
    for number in range(70):
        before = cache.frames
        value = torch.full((1, 1, 1), float(number))
        keys, values = cache.put(0, value, value + 0.5)
        assert sorted(keys.flatten().tolist()) == [*before, number]
        assert torch.equal(values, keys + 0.5)
        cache.seen += 1
    assert cache.frames == [*range(8), *range(22, 70)]
    assert cache.bytes == 2 * 57 * 4


def test_without_a_limit_every_frame_is_kept() -> None:
    cache = FrameCache(recent=None)
    for number in range(70):
        keys, _ = cache.put(0, *[torch.full((1, 1, 1), float(number))] * 2)
        cache.seen += 1
    assert keys.flatten().tolist() == list(range(70))
    assert cache.frames == list(range(70))


@torch.inference_mode()
def test_a_frame_sees_those_that_are_kept_and_no_other() -> None:
    """With room for 1 + 2 frames: the fourth frame sees three, the fifth not the second one any more."""
    model, frames = tiny_model(), tiny_frames(6)
    small = seen(model, frames, FrameCache(first=1, recent=2))
    whole = seen(model, frames, FrameCache())
    torch.testing.assert_close(small[:4], whole[:4], atol=1e-6, rtol=0)
    assert (small[4] - whole[4]).abs().max() > 1e-3
    changed = frames.clone()
    changed[1] = 255 - changed[1]
    again = seen(model, changed, FrameCache(first=1, recent=2))
    torch.testing.assert_close(again[[0]], small[[0]], atol=1e-6, rtol=0)
    assert (again[3] - small[3]).abs().max() > 1e-3


@torch.inference_mode()
def test_caches_of_different_length_share_a_batch() -> None:
    model, frames = tiny_model(), tiny_frames(6)
    alone = [FrameCache(), FrameCache(), FrameCache()]
    together = [FrameCache(), FrameCache(), FrameCache()]
    for caches in (alone, together):
        for cache, count in zip(caches, (0, 1, 4), strict=True):
            for each in frames[:count]:
                model.geometry_features(each[None], [cache])
    known = torch.cat([model.geometry_features(frames[5:], [cache]) for cache in alone])
    found = model.geometry_features(frames[5:].expand(3, -1, -1, -1), together)
    torch.testing.assert_close(found, known, atol=1e-6, rtol=0)


@torch.inference_mode()
def test_samples_of_a_batch_keep_their_own_geometry() -> None:
    """The published code gives every other image of a batch the geometry of another sample."""
    model = tiny_model()
    ids = [[1, IMAGE, IMAGE, IMAGE, 5], [2, IMAGE, 3, 4, 6, 7], [1, IMAGE, IMAGE, IMAGE, 9]]
    frames = [tiny_frames(count, seed=seed) for count, seed in ((3, 1), (1, 2), (3, 3))]
    together = model(ids, frames).logits
    for i in range(3):
        alone = model([ids[i]], [frames[i]]).logits[0]
        torch.testing.assert_close(together[i, : len(alone)], alone, atol=1e-5, rtol=0)


def test_tied_embeddings_need_no_output_head() -> None:
    model = tiny_model(tie_word_embeddings=True)
    assert "lm_head.weight" not in model.state_dict()
    hidden = torch.ones(1, 16)
    torch.testing.assert_close(model.logits(hidden), hidden @ model.model.embed_tokens.weight.T)


def test_parts_and_what_the_original_trains(goldens: Path) -> None:
    """Its flags, and what trains whatever they say: the geometry merger and an untied output head."""
    known = traces(goldens)["training"]
    names = known["parameter_names"]
    assert len(known["trainable"]) == 8
    for flags, entry in known["trainable"].items():
        chosen = {f"mm_{flag[:-2]}" for flag in flags.split() if flag.endswith("=1")}
        wanted = chosen | {"geometry_merger"}
        assert {names[i] for i in entry["trainable"]} == {
            name for name in names if part_of(name) in wanted or name == "lm_head.weight"
        }


def test_nothing_of_vggt_trains() -> None:
    model = tiny_model()
    trained = {part_of(name) for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"mm_vision", "mm_mlp", "mm_llm", "geometry_merger"}
    assert tiny_config().geometry_weight == 0.2
