"""Released checkpoints of every layout become the same network; wrong ones end in a line with file and key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.vlnce.checkpoint import (
    DDPPO_PREFIX,
    DEPTH_FILE,
    DEPTH_PREFIX,
    RGB_FILE,
    RGB_PREFIX,
    Loaded,
    load,
)
from agents.vlnce.options import Kind
from tests.agents.vlnce import released
from vlnbench.errors import UsageError
from vlnbench.interfaces import Conventions

State = dict[str, Tensor]
COUNT = ".num_batches_tracked"
SAMPLES = "goldens/vlnce_cma/checkpoints"
KEY = "net.state_encoder.rnn.weight_hh_l0"


@pytest.fixture(scope="module")
def made() -> dict[Kind, State]:
    return {kind: dict(released.weights(released.tiny(kind))) for kind in ("cma", "seq2seq")}


def same(loaded: Loaded, state: State) -> bool:
    found = loaded.policy.state_dict()
    learned = [key for key in state if not key.endswith(COUNT)]
    return list(found) == list(state) and all(torch.equal(found[key], state[key]) for key in learned)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", ["cma", "seq2seq"])
def test_every_layout(made: dict[Kind, State], tmp_path: Path, kind: Kind, old: bool, legacy: bool) -> None:
    state = released.old_layout(made[kind]) if old else made[kind]
    path = released.write(tmp_path / "a.pth", state, released.settings(released.tiny(kind)), legacy=legacy)
    loaded = load(path)
    assert same(loaded, made[kind])
    assert loaded.config.network == released.tiny(kind)
    assert not loaded.policy.training


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
def test_what_wrappers_add_to_names_is_taken_away(made: dict[Kind, State], tmp_path: Path, prefix: str) -> None:
    state = {prefix + key: each for key, each in made["cma"].items()}
    path = released.write(tmp_path / "a.pth", state, released.settings(released.tiny()))
    assert same(load(path), made["cma"])


@pytest.mark.parametrize("legacy", [False, True])
def test_the_state_of_an_interrupted_training(made: dict[Kind, State], tmp_path: Path, legacy: bool) -> None:
    moments = {0: {"step": 1, "exp_avg": torch.ones(3)}}
    adam = {"state": moments, "param_groups": [{"lr": 2.5e-4, "params": [0]}]}
    beside: dict[str, Any] = {"optim_state": adam, "epoch": 3, "step_id": 77}
    settings = released.settings(released.tiny())
    path = released.write(tmp_path / "a.pth", made["cma"], settings, legacy=legacy, **beside)
    assert same(load(path), made["cma"])


def test_the_progress_monitor_is_there_either_way(made: dict[Kind, State], tmp_path: Path) -> None:
    config = replace(released.tiny(), progress_monitor=True)
    path = released.write(tmp_path / "a.pth", made["cma"], released.settings(config))
    assert load(path).config.network.progress_monitor
    short = {key: value for key, value in made["cma"].items() if "progress_monitor" not in key}
    with pytest.raises(UsageError, match=r"2 missing: net\.progress_monitor\.weight, net\.progress_monitor\.bias"):
        load(released.write(path, short, released.settings(config)))


def test_recorded_samples(shared: Path, made: dict[Kind, State]) -> None:
    for kind in ("cma", "seq2seq"):
        loaded = load(shared / SAMPLES / f"{kind}_tiny.pth")
        assert same(loaded, made[kind])
        assert replace(loaded.config.network, progress_monitor=False) == released.tiny(kind)
    assert loaded.config.expects == Conventions(224, 224, 90.0, 1.25, 0.25, 15.0)
    requeue = load(shared / SAMPLES / "seq2seq_tiny_requeue.pth")
    assert list(requeue.policy.state_dict()) == list(made["seq2seq"])
    for name in ("cma_part_legacy.pth", "cma_part_oldzip.pth"):
        with pytest.raises(UsageError, match="lacks the RGB encoder"):
            load(shared / SAMPLES / name)


def test_a_recorded_depth_encoder_beside_the_checkpoint(
    shared: Path, made: dict[Kind, State], tmp_path: Path
) -> None:
    short = {key: value for key, value in made["cma"].items() if not key.startswith(DEPTH_PREFIX)}
    path = released.write(tmp_path / "a.pth", short, released.settings(released.tiny()))
    (tmp_path / DEPTH_FILE).parent.mkdir()
    (tmp_path / DEPTH_FILE).write_bytes((shared / SAMPLES / "ddppo_depth_tiny.pth").read_bytes())
    found = load(path).policy.state_dict()
    assert all(torch.equal(found[key], value) for key, value in short.items() if not key.endswith(COUNT))


@pytest.mark.parametrize("counted", [True, False])
def test_convolutions_beside_the_checkpoint(made: dict[Kind, State], tmp_path: Path, counted: bool) -> None:
    whole, config = made["cma"], released.tiny()
    short = {key: value for key, value in whole.items() if not key.startswith((DEPTH_PREFIX, RGB_PREFIX))}
    path = released.write(tmp_path / "a.pth", short, released.settings(config))
    with pytest.raises(UsageError, match=rf"put DD-PPO's gibson-2plus-resnet50\.pth at {tmp_path}/ddppo-models/"):
        load(path)
    own = {key: value for key, value in whole.items() if key.startswith(DEPTH_PREFIX)}
    depth = {key.replace(DEPTH_PREFIX, DDPPO_PREFIX): value for key, value in own.items()}
    (tmp_path / DEPTH_FILE).parent.mkdir()
    released.write(tmp_path / DEPTH_FILE, depth | {"actor_critic.critic.fc.bias": torch.ones(1)}, None)
    with pytest.raises(UsageError, match=rf"put torchvision's resnet50-0676ba61\.pth at {tmp_path}/"):
        load(path)
    old = released.old_layout({key: value for key, value in whole.items() if key.startswith(RGB_PREFIX)})
    rgb = {key.removeprefix(RGB_PREFIX): value for key, value in old.items()} | {"fc.bias": torch.ones(1000)}
    if not counted:
        rgb = {key: value for key, value in rgb.items() if not key.endswith(COUNT)}
    torch.save(rgb, tmp_path / RGB_FILE)
    assert same(load(path), whole)


def test_the_hash_is_of_the_contents_that_were_read(made: dict[Kind, State], tmp_path: Path) -> None:
    path, settings = tmp_path / "a.pth", released.settings(released.tiny())
    first = load(released.write(path, made["cma"], settings)).sha256
    assert load(path).sha256 == first
    changed = made["cma"] | {KEY: made["cma"][KEY] + 1e-3}
    assert load(released.write(path, changed, settings)).sha256 != first


def with_value(value: Tensor) -> Callable[[State], State]:
    return lambda state: state | {KEY: value}


def without(key: str) -> Callable[[State], State]:
    return lambda state: {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (without(KEY), rf"1 missing: {KEY}"),
        (without("action_distribution.linear.weight"), r"action_distribution\.linear\.weight is missing"),
        (lambda state: state | {"net.extra": torch.ones(1)}, r"1 unexpected: net\.extra"),
        (
            lambda state: state | {"net.rgb_encoder.cnn.bn1.bias": torch.ones(1)},
            r"cnn\.bn1\.bias and net\.rgb_encoder\.cnn\.1\.bias are two names of one weight",
        ),
        (with_value(torch.ones(96, 16)), rf"1 misshapen: {KEY} \[96, 16\] for \[96, 32\]"),
        (with_value(torch.ones(96, 32).long()), rf"1 not floating-point: {KEY}"),
        (with_value(torch.full((96, 32), torch.nan)), rf"{KEY} holds numbers that are not finite"),
        (lambda state: state | {KEY: 3}, rf"state_dict\['{KEY}'\]: expected a tensor"),
        (
            lambda state: state | {"action_distribution.linear.weight": torch.ones(5, 32)},
            r"action_distribution\.linear\.weight \[5, 32\]: expected 4 actions",
        ),
    ],
)
def test_wrong_weights(
    made: dict[Kind, State], tmp_path: Path, change: Callable[[State], State], line: str
) -> None:
    path = released.write(tmp_path / "a.pth", change(made["cma"]), released.settings(released.tiny()))
    with pytest.raises(UsageError, match=line) as raised:
        load(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("place", "value", "line"),
    [
        ("MODEL", None, "config: expected VLN-CE's settings with MODEL"),
        (
            "MODEL.policy_name",
            "WaypointPolicy",
            'config.MODEL: policy_name: expected "CMAPolicy" or "Seq2SeqPolicy"',
        ),
        ("MODEL.STATE_ENCODER.hidden_size", 33, "RGB_ENCODER: output_size: expected at most half of an even"),
        ("MODEL.STATE_ENCODER.hidden_size", 64, "misshapen"),
        ("MODEL.STATE_ENCODER.hidden_size", 10**12, "STATE_ENCODER: hidden_size: expected a whole number"),
        ("MODEL.STATE_ENCODER.hidden_size", True, "hidden_size: expected a whole number"),
        ("MODEL.STATE_ENCODER.rnn_type", "LSTM", 'STATE_ENCODER: rnn_type: expected "GRU", found "LSTM"'),
        ("MODEL.STATE_ENCODER", 3, "config.MODEL: STATE_ENCODER: expected a node"),
        ("MODEL.RGB_ENCODER.output_size", 17, "RGB_ENCODER: output_size: expected at most half"),
        ("MODEL.RGB_ENCODER.cnn_type", "SimpleRGBCNN", 'cnn_type: expected "TorchVisionResNet50"'),
        ("MODEL.INSTRUCTION_ENCODER.sensor_uuid", "speech", 'sensor_uuid: expected "instruction" or'),
        ("MODEL.INSTRUCTION_ENCODER.sensor_uuid", "rxr_instruction", "embedding_size: expected 768"),
        ("MODEL.INSTRUCTION_ENCODER.bidirectional", False, "misshapen"),
        ("MODEL.INSTRUCTION_ENCODER.vocab_size", 41, r"\[40, 6\] for \[41, 6\]"),
        ("MODEL.CMA", {"rcm_state_encoder": True}, "rcm_state_encoder: expected False"),
        ("RL.POLICY.OBS_TRANSFORMS.ENABLED_TRANSFORMS", ["CubeMap"], "ENABLED_TRANSFORMS: expected none"),
        ("TASK_CONFIG.SIMULATOR.DEPTH_SENSOR.NORMALIZE_DEPTH", False, "with NORMALIZE_DEPTH True"),
        ("TASK_CONFIG.SIMULATOR.RGB_SENSOR.POSITION", [1], "POSITION: expected three numbers"),
    ],
)
def test_wrong_settings(made: dict[Kind, State], tmp_path: Path, place: str, value: object, line: str) -> None:
    settings = released.settings(released.tiny())
    *nodes, last = place.split(".")
    node = settings
    for name in nodes:
        node = node[name]
    node[last] = value
    path = released.write(tmp_path / "a.pth", made["cma"], settings)
    with pytest.raises(UsageError, match=line) as raised:
        load(path)
    assert str(raised.value).startswith(str(path))


def test_no_settings_and_no_weights(made: dict[Kind, State], tmp_path: Path) -> None:
    path = released.write(tmp_path / "a.pth", made["cma"], None)
    with pytest.raises(UsageError, match="config: expected VLN-CE's settings"):
        load(path)
    torch.save(made["cma"], path)
    with pytest.raises(UsageError, match="state_dict: expected"):
        load(path)


def test_settings_of_before_policies_had_names(made: dict[Kind, State], tmp_path: Path) -> None:
    for kind, state in made.items():
        settings = released.settings(released.tiny(kind))
        del settings["MODEL"]["policy_name"], settings["MODEL"]["INSTRUCTION_ENCODER"]["sensor_uuid"]
        settings["MODEL"]["CMA"] = {"use": kind == "cma", "rcm_state_encoder": False}
        del settings["EVAL"], settings["RL"], settings["TASK_CONFIG"]
        loaded = load(released.write(tmp_path / "a.pth", state, settings))
        assert loaded.config.network.kind == kind
        assert loaded.config.expects == Conventions(224, 224, 90.0, 1.25, 0.25, 15.0)
        assert not loaded.config.samples
