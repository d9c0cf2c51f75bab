from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config

from agents.common.decoders.qwen2 import language_sizes, vision_config
from agents.common.towers.siglip import KNOWN_TOWERS
from agents.streamvln.network import parse_config, read_config
from tests.agents.streamvln.tiny import tiny_config, tiny_raw
from vlnbench.errors import UsageError


def write(folder: Path, raw: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def without_sizes(**changes: Any) -> dict[str, Any]:
    raw = tiny_raw(mm_vision_tower="somewhere/siglip-so400m-patch14-384", **changes)
    del raw["vision_config"]
    return raw


def test_recorded_checkpoint(goldens: Path) -> None:
    config = read_config(goldens / "checkpoint", goldens / "vision_tower")
    assert (config.num_hidden_layers, config.head_dim, config.vocab_size) == (2, 16, 960)
    assert (config.vision.hidden_size, config.vision.num_hidden_layers, config.image_tokens) == (48, 3, 196)
    assert (config.num_history, config.num_frames, config.num_future_steps) == (8, 32, 4)
    assert config.dtype is torch.float32


def test_parts_for_transformers() -> None:
    config = tiny_config(rope_theta=12345.0)
    language = Qwen2Config(**language_sizes(config, "eager"))
    vision = vision_config(config, "eager")
    assert language.rope_parameters["rope_theta"] == 12345.0
    assert language.layer_types == ["full_attention"] * 2
    assert (vision.num_hidden_layers, vision.image_size, vision.vision_use_head) == (2, 96, False)


@pytest.mark.parametrize(("size", "patch", "tokens"), [(384, 14, 196), (96, 16, 9), (32, 16, 1), (48, 16, 4)])
def test_pooled_tokens_of_an_image(size: int, patch: int, tokens: int) -> None:
    vision = tiny_raw()["vision_config"] | {"image_size": size, "patch_size": patch}
    assert tiny_config(vision_config=vision).image_tokens == tokens


def test_tower_sizes_come_from_the_checkpoint_then_a_folder_then_the_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "tower", {"vision_config": tiny_raw()["vision_config"] | {"image_size": 48}})
    assert parse_config(tiny_raw(), "c", folder).vision.image_size == 96
    assert parse_config(without_sizes(), "c", folder).vision.image_size == 48
    assert (
        parse_config(without_sizes(mm_hidden_size=1152), "c").vision == KNOWN_TOWERS["siglip-so400m-patch14-384"]
    )


@pytest.mark.parametrize("value", [None, "absent"])
def test_history_that_the_config_does_not_state_is_eight(value: str | None) -> None:
    raw = tiny_raw(num_history=value)
    if value:
        del raw["num_history"]
    assert parse_config(raw, "c").num_history == 8


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("model_type", "llama", '"llava_qwen"'),
        ("hidden_size", None, "a whole number from 1 to 16777216, found null"),
        ("hidden_size", "32", "a whole number from 1 to 16777216"),
        ("hidden_size", True, "a whole number from 1 to 16777216"),
        ("hidden_size", 30, "an even multiple of num_attention_heads"),
        ("num_key_value_heads", 3, "a divisor of num_attention_heads"),
        ("num_history", 0, "a whole number from 1 to 16777216"),
        ("num_frames", 2.5, "a whole number from 1 to 16777216"),
        ("rope_theta", None, "a number from 0 to 1e30"),
        ("rms_norm_eps", float("nan"), "a number from 0 to 1e30"),
        ("mm_projector_type", "linear", '"mlp2x_gelu"'),
        ("mm_spatial_pool_mode", "max", '"bilinear"'),
        ("tie_word_embeddings", 0, "false"),
        ("use_sliding_window", True, "false"),
        ("torch_dtype", "int8", '"float32" or "bfloat16"'),
        ("torch_dtype", ["float32"], '"float32" or "bfloat16"'),
        ("vision_config", [], "an object"),
        (
            "vision_config",
            {"hidden_size": 24},
            "intermediate_size: expected a whole number from 1 to 16777216, found nothing",
        ),
    ],
)
def test_every_field_is_checked(field: str, value: Any, expected: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_config(tiny_raw(**{field: value}), "here/config.json")
    message = str(raised.value)
    assert message.startswith(f"here/config.json: {field}")
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"num_hidden_layers": 1}, "at least 2"),
        ({"num_attention_heads": 5}, "a multiple of num_attention_heads"),
        ({"patch_size": 97}, "at most image_size"),
        ({"num_channels": 4}, "expected 3"),
        ({"hidden_act": "relu"}, "gelu_pytorch_tanh"),
    ],
)
def test_tower_sizes_are_checked(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        tiny_config(vision_config=tiny_raw()["vision_config"] | change)


def test_projector_and_tower_must_fit() -> None:
    with pytest.raises(
        UsageError, match=r"mm_hidden_size is 24, the vision tower .* has width 1152: give --vision-t"
    ):
        parse_config(without_sizes(), "config.json")


def test_tower_of_unknown_name() -> None:
    with pytest.raises(UsageError, match='mm_vision_tower: "clip" is of unknown size: give --vision-tower'):
        parse_config(without_sizes() | {"mm_vision_tower": "openai/clip"}, "config.json")


def test_folders_that_are_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a checkpoint: expected a folder with config.json"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"--vision-tower .*expected a folder with the config.json of a SigLIP"):
        parse_config(without_sizes(), "config.json", tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", "\xff"])
def test_config_that_is_no_json_object(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=r"config\.json") as raised:
        read_config(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_config_as_transformers_5_saves_it_is_read() -> None:
    raw = tiny_raw()
    newer = {name: value for name, value in raw.items() if name not in ("rope_theta", "torch_dtype")}
    newer |= {"rope_parameters": {"rope_theta": raw["rope_theta"], "rope_type": "default"}}
    newer |= {"dtype": raw.get("torch_dtype", "bfloat16")}
    was, found = (vars(parse_config(each, "config.json")) | {"raw": None} for each in (raw, newer))
    assert was == found


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_stretched_positions_are_refused(name: str) -> None:
    raw = tiny_raw(**{name: {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0}})
    with pytest.raises(UsageError, match=rf'config.json: {name}: rope_type: expected "default", found "yarn"'):
        parse_config(raw, "config.json")
