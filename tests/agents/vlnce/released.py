"""Writes checkpoints in the layout of VLN-CE's releases, small ones with made weights."""

from __future__ import annotations

import sys
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from agents.common.prompts.words import FEATURE_SIZE
from agents.vlnce.network import Policy
from agents.vlnce.options import FEATURES, Kind, NetworkConfig
from tests.agents.vlnce import formula

OLD_NAMES = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}


class Config(dict[str, Any]):
    """Pickles as habitat-lab's config node does: a dictionary of another module, with attributes."""

    def __init__(self, values: Mapping[str, Any] = types.MappingProxyType({})) -> None:
        nodes = {key: Config(value) for key, value in values.items() if isinstance(value, dict)}
        super().__init__({**values, **nodes})
        self.__dict__.update(__immutable__=True, __deprecated_keys__={"SIMULATOR_GPU_ID"}, __renamed_keys__={})


Config.__module__ = "habitat.config.default"


@contextmanager
def _habitat() -> Iterator[None]:
    """The module that pickles name, for as long as one is written."""
    modules = {name: types.ModuleType(name) for name in ("habitat", "habitat.config", "habitat.config.default")}
    modules["habitat.config.default"].Config = Config  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules, modules):
        yield


def tiny(kind: Kind = "cma", rxr: bool = False, actions: int | None = None) -> NetworkConfig:
    """The sizes of the small models in the recordings."""
    config = NetworkConfig(
        kind=kind,
        vocab_size=40,
        embedding_size=6,
        text_size=8,
        bidirectional=kind == "cma",
        rgb_size=12,
        depth_size=10,
        state_size=32,
        num_actions=actions or (6 if rxr else 4),
        rgb_width=1,
        depth_planes=2,
    )
    return replace(config, reads=FEATURES, embedding_size=FEATURE_SIZE) if rxr else config


def settings(config: NetworkConfig) -> dict[str, Any]:
    """The `config` that VLN-CE's trainers would store: what a reader needs of it, and some of the rest."""
    rxr = config.reads == FEATURES
    sensors: dict[str, Any] = {
        "RGB_SENSOR": {"WIDTH": 224, "HEIGHT": 224, "HFOV": 90, "POSITION": [0, 1.25, 0]},
        "DEPTH_SENSOR": {"WIDTH": 256, "HEIGHT": 256, "MIN_DEPTH": 0.0, "MAX_DEPTH": 10.0},
    }
    if rxr:
        sensors["RGB_SENSOR"] = {"WIDTH": 640, "HEIGHT": 480, "HFOV": 79, "POSITION": [0, 0.88, 0]}
        sensors["DEPTH_SENSOR"] |= {"WIDTH": 640, "HEIGHT": 480, "MIN_DEPTH": 0.5, "MAX_DEPTH": 5.0}
    return {
        "TASK_CONFIG": {
            "SEED": 100,
            "SIMULATOR": {"FORWARD_STEP_SIZE": 0.25, "TURN_ANGLE": 30 if rxr else 15, **sensors},
        },
        "RL": {
            "POLICY": {
                "OBS_TRANSFORMS": {
                    "ENABLED_TRANSFORMS": ["ResizeShortestEdge", "CenterCropperPerSensor"] if rxr else [],
                    "RESIZE_SHORTEST_EDGE": {"SIZE": 256},
                    "CENTER_CROPPER_PER_SENSOR": {"SENSOR_CROPS": [["rgb", [224, 224]], ["depth", [256, 256]]]},
                }
            }
        },
        "EVAL": {"SAMPLE": False},
        "MODEL": {
            "policy_name": "CMAPolicy" if config.kind == "cma" else "Seq2SeqPolicy",
            "normalize_rgb": False,
            "INSTRUCTION_ENCODER": {
                "sensor_uuid": config.reads,
                "vocab_size": config.vocab_size,
                "embedding_size": config.embedding_size,
                "hidden_size": config.text_size,
                "rnn_type": "LSTM",
                "bidirectional": config.bidirectional,
            },
            "RGB_ENCODER": {"cnn_type": "TorchVisionResNet50", "output_size": config.rgb_size, "trainable": False},
            "DEPTH_ENCODER": {
                "cnn_type": "VlnResnetDepthEncoder",
                "output_size": config.depth_size,
                "backbone": "resnet50",
                "ddppo_checkpoint": "data/ddppo-models/gibson-2plus-resnet50.pth",
            },
            "STATE_ENCODER": {"hidden_size": config.state_size, "rnn_type": "GRU"},
            "PROGRESS_MONITOR": {"use": config.progress_monitor, "alpha": 1.0},
        },
    }


def weights(config: NetworkConfig) -> OrderedDict[str, Tensor]:
    """A state dict with made weights."""
    with torch.device("meta"):
        policy = Policy(config)
    state: OrderedDict[str, Tensor] = formula.fill(policy).state_dict()
    return state


def old_layout(state: Mapping[str, Tensor]) -> OrderedDict[str, Tensor]:
    """The same weights under the names of before October 2021, with the classifier that Seq2Seq carried along."""
    renamed: OrderedDict[str, Tensor] = OrderedDict()
    for key, value in state.items():
        if key.startswith("net.rgb_encoder.cnn."):
            child, _, rest = key.removeprefix("net.rgb_encoder.cnn.").partition(".")
            key = f"net.rgb_encoder.cnn.{OLD_NAMES[child]}.{rest}"
        renamed[key.replace("rgb_encoder.fc.1.", "rgb_encoder.fc.")] = value
    if "net.rgb_encoder.fc.weight" in renamed:
        renamed["net.rgb_encoder.cnn.fc.weight"] = torch.ones(1000, 32)
        renamed["net.rgb_encoder.cnn.fc.bias"] = torch.ones(1000)
    return renamed


def write(
    path: Path,
    state: Mapping[str, Tensor],
    values: Mapping[str, Any] | None,
    *,
    legacy: bool = False,
    **beside: Any,
) -> Path:
    """Write a checkpoint as VLN-CE's trainers do, with what training states have beside it."""
    content: dict[str, Any] = {"state_dict": state, **beside}
    if values is not None:
        content["config"] = Config(values)
    with _habitat():
        torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return path


def write_tiny(path: Path, kind: Kind = "cma", rxr: bool = False) -> Path:
    """A small checkpoint in the released layout."""
    config = tiny(kind, rxr)
    return write(path, weights(config), settings(config))
