"""Checkpoints of CMA and Seq2Seq: folders that training writes, and released files (.pth) with VLN-CE's settings.

A released file is a dictionary of `state_dict` and `config`; those of interrupted trainings hold an optimizer and
counters beside them. Files from before October 2021 name the RGB network as torchvision does. Fields of the config
that older versions did not have take the value those versions worked with.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from agents.common.checkpoints.files import CONFIG, Fields, read_json
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.pickled import read_pickled
from agents.common.checkpoints.weights import (
    BUFFERS,
    SINGLE,
    Entry,
    check_entries,
    fill,
    read_entries,
    weight_files,
    without_wrappers,
)
from agents.common.inputs import validated
from agents.common.prompts.words import FEATURE_SIZE, words_of
from agents.common.sight.options import LARGEST, Views
from agents.vlnce.network import Policy
from agents.vlnce.options import FEATURES, MODEL_TYPE, PRESETS, PTH, TOKENS, Config, Kind, NetworkConfig
from vlnbench.errors import UsageError
from vlnbench.interfaces import Conventions
from vlnbench.util.durable.fields import short
from vlnbench.util.durable.folder import appearing

POLICIES: dict[str, Kind] = {"CMAPolicy": "cma", "Seq2SeqPolicy": "seq2seq"}
TRANSFORMS = ("ResizeShortestEdge", "CenterCropperPerSensor")


class Node(Fields):
    """A node of VLN-CE's settings."""

    def node(self, name: str) -> Node:
        """A nested node; one that is absent counts as empty."""
        found = self.values.get(name, {})
        if not isinstance(found, dict):
            raise self.error(name, "a node with fields")
        return Node(found, f"{self.where}.{name}")

    def size(self, name: str, default: int | None = None) -> int:
        """A positive whole number of at most LARGEST."""
        return self.integer(name, default, LARGEST)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.choice(name, True, False, default=default))

    def items(self, name: str) -> list[Any]:
        """A list; an absent one is empty."""
        value = self.values.get(name, ())
        if not isinstance(value, list | tuple):
            raise self.error(name, "a list")
        return list(value)


def read_config(values: Any, where: str) -> Config:
    """Read the `config` of a checkpoint. Raises UsageError for one that is absent, wrong or not supported.

    VLN-CE evaluates its RxR models by sampling, its R2R models greedily unless EVAL.SAMPLE says otherwise.
    """
    if not isinstance(values, dict) or not isinstance(values.get("MODEL"), dict):
        raise UsageError(f"{where}: config: expected VLN-CE's settings with MODEL, which its trainers store there")
    config = Node(values, f"{where}: config")
    network = _network(config.node("MODEL"))
    simulator = config.node("TASK_CONFIG").node("SIMULATOR")
    rxr = network.reads == FEATURES
    return Config(
        network=network,
        views=_views(config, simulator, rxr),
        expects=_expects(simulator, rxr),
        samples=rxr or config.node("EVAL").flag("SAMPLE"),
    )


def _network(model: Node) -> NetworkConfig:
    kind = _kind(model)
    text, rgb, depth = (model.node(f"{name}_ENCODER") for name in ("INSTRUCTION", "RGB", "DEPTH"))
    state, progress = model.node("STATE_ENCODER"), model.node("PROGRESS_MONITOR")
    reads = text.choice("sensor_uuid", TOKENS, FEATURES, default=TOKENS)
    text.choice("rnn_type", "LSTM", default="LSTM")
    state.choice("rnn_type", "GRU", default="GRU")
    rgb.choice("cnn_type", "TorchVisionResNet50", default="TorchVisionResNet50")
    depth.choice("cnn_type", "VlnResnetDepthEncoder", default="VlnResnetDepthEncoder")
    depth.choice("backbone", "resnet50", default="resnet50")
    if model.node("CMA").flag("rcm_state_encoder"):
        raise model.node("CMA").error("rcm_state_encoder", "False")
    bidirectional = text.flag("bidirectional")
    if kind == "seq2seq" and bidirectional:
        raise text.error("bidirectional", "False for Seq2Seq")
    config = NetworkConfig(
        kind=kind,
        reads=reads,
        vocab_size=text.size("vocab_size", 2504),
        embedding_size=text.size("embedding_size"),
        text_size=text.size("hidden_size"),
        bidirectional=bidirectional,
        rgb_size=rgb.size("output_size"),
        depth_size=depth.size("output_size"),
        state_size=state.size("hidden_size"),
        normalize_rgb=model.flag("normalize_rgb"),
        ablate_instruction=model.flag("ablate_instruction"),
        ablate_depth=model.flag("ablate_depth"),
        ablate_rgb=model.flag("ablate_rgb"),
        use_prev_action=model.node("SEQ2SEQ").flag("use_prev_action"),
        progress_monitor=progress.flag("use"),
        progress_weight=progress.number("alpha", 1.0),
        tune_embeddings=text.flag("fine_tune_embeddings"),
        tune_rgb=rgb.flag("trainable"),
        tune_depth=depth.flag("trainable"),
    )
    if reads == FEATURES and config.embedding_size != FEATURE_SIZE:
        raise text.error("embedding_size", f"{FEATURE_SIZE}, the length of RxR's BERT features")
    half = config.state_size // 2
    for encoder, size in ((rgb, config.rgb_size), (depth, config.depth_size)):
        if kind == "cma" and (config.state_size % 2 or size > half):
            raise encoder.error("output_size", f"at most half of an even STATE_ENCODER.hidden_size ({half})")
    return config


def _kind(model: Node) -> Kind:
    """By the policy's name; configs from before there was one say `CMA.use`."""
    if "policy_name" not in model.values:
        return "cma" if model.node("CMA").flag("use") else "seq2seq"
    return POLICIES[model.choice("policy_name", *POLICIES)]


def _views(config: Node, simulator: Node, rxr: bool) -> Views:
    rgb, depth = simulator.node("RGB_SENSOR"), simulator.node("DEPTH_SENSOR")
    frame = (rgb.size("HEIGHT", 480 if rxr else 224), rgb.size("WIDTH", 640 if rxr else 224))
    depth_frame = (depth.size("HEIGHT", 480 if rxr else 256), depth.size("WIDTH", 640 if rxr else 256))
    nearest, farthest = (
        depth.number("MIN_DEPTH", 0.5 if rxr else 0.0),
        depth.number("MAX_DEPTH", 5.0 if rxr else 10),
    )
    if not 0 <= nearest < farthest or not depth.flag("NORMALIZE_DEPTH", True):
        raise depth.error("MAX_DEPTH", "meters above MIN_DEPTH, with NORMALIZE_DEPTH True")
    transforms = config.node("RL").node("POLICY").node("OBS_TRANSFORMS")
    usual = list(TRANSFORMS) if rxr else []
    enabled = transforms.items("ENABLED_TRANSFORMS") if "ENABLED_TRANSFORMS" in transforms.values else usual
    if not enabled:
        return Views(frame, depth_frame, (nearest, farthest))
    if enabled != list(TRANSFORMS):
        raise transforms.error("ENABLED_TRANSFORMS", f"none or {', '.join(TRANSFORMS)}")
    edge = transforms.node("RESIZE_SHORTEST_EDGE").size("SIZE", 256)
    crops = _crops(transforms.node("CENTER_CROPPER_PER_SENSOR"))
    rgb_crop, depth_crop = crops.get("rgb", (224, 224)), crops.get("depth", (256, 256))
    return Views(frame, depth_frame, (nearest, farthest), edge, rgb_crop, depth_crop)


def _crops(cropper: Node) -> dict[str, tuple[int, int]]:
    crops: dict[str, tuple[int, int]] = {}
    for item in cropper.items("SENSOR_CROPS"):
        match item:
            case ["rgb" | "depth" as sensor, [int(height), int(width)]] if min(height, width) >= 1:
                crops[sensor] = (height, width)
            case _:
                raise cropper.error("SENSOR_CROPS", "[sensor, [height, width]] for rgb and depth")
    return crops


def _expects(simulator: Node, rxr: bool) -> Conventions:
    """The camera and the steps that the network was trained with; VLN-CE's defaults where the config has none."""
    rgb = simulator.node("RGB_SENSOR")
    heights = rgb.items("POSITION") or [0.0, 0.88 if rxr else 1.25, 0.0]
    if len(heights) != 3 or not all(isinstance(value, int | float) for value in heights):
        raise rgb.error("POSITION", "three numbers")
    return Conventions(
        width=rgb.size("WIDTH", 640 if rxr else 224),
        height=rgb.size("HEIGHT", 480 if rxr else 224),
        hfov=rgb.number("HFOV", 79.0 if rxr else 90.0),
        camera_height_m=float(heights[1]),
        forward_m=simulator.number("FORWARD_STEP_SIZE", 0.25),
        turn_deg=simulator.number("TURN_ANGLE", 30.0 if rxr else 15.0),
    )


SETTINGS = ("habitat.config.default.Config",)
"""The class of habitat-lab whose objects VLN-CE's trainers store as `config`."""
DEPTH_PREFIX, RGB_PREFIX = "net.depth_encoder.visual_encoder.", "net.rgb_encoder.cnn."
DEPTH_FILE = Path("ddppo-models", "gibson-2plus-resnet50.pth")
RGB_FILE = Path("resnet50-0676ba61.pth")
"""torchvision's first weights for ResNet-50; the second ones are another network's."""
DDPPO_PREFIX = "actor_critic.net.visual_encoder."
TORCHVISION = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}


class Stored(NamedTuple):
    """A tensor in a file, and its name there."""

    path: Path
    key: str
    tensor: Tensor


class Loaded(NamedTuple):
    """A checkpoint's network on the CPU, in evaluation mode, its config, the hash of its files, and these."""

    policy: Policy
    config: Config
    sha256: str
    files: Sequence[Path]


def load(path: Path) -> Loaded:
    """Read a folder, or a released file. Convolutions that this lacks are looked for beside it: see DEPTH_FILE.

    Raises UsageError, one line with file and key, before a network is built in memory, for files that
    `read_pickled` or `read_config` refuse and for weights that are not exactly those of the network in the
    config; and for weights that are not finite.
    """
    config, stored, files = _read(path) if path.suffix == PTH else (read(path), {}, files_of(path))
    entries = {
        name: Entry(each.path, each.key, tuple(each.tensor.shape), each.tensor.is_floating_point())
        for name, each in stored.items()
    }
    with torch.device("meta"):
        policy = Policy(config.network)
    check_entries(entries or read_entries(files[1:]), policy, path, "its config" if stored else CONFIG)
    if stored:
        policy.load_state_dict({name: _copied(each) for name, each in stored.items()}, strict=False, assign=True)
    else:
        fill(policy, files[1:], torch.float32, torch.device("cpu"))
    for name, buffer in policy.named_buffers():
        if buffer.is_meta:  # counts of batches, which some do not save and nothing reads
            module, _, leaf = name.rpartition(".")
            policy.get_submodule(module).register_buffer(leaf, torch.tensor(0))
    return Loaded(policy.eval(), config, content_hash(files), files)


def read(path: Path) -> Config:
    """The config of a folder, or of a released file with its ResNets' widths. Raises UsageError as `load`."""
    return _read(path)[0] if path.suffix == PTH else _read_folder(path)


def files_of(path: Path) -> Sequence[Path]:
    """The files that loading reads. Raises UsageError where one is missing."""
    return _read(path)[2] if path.suffix == PTH else [path / CONFIG, *weight_files(path)]


def _read(path: Path) -> tuple[Config, dict[str, Stored], list[Path]]:
    content = read_pickled(path, SETTINGS, checksums=True)
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise UsageError(f"{path}: state_dict: expected the weights of VLN-CE's trainers under this name")
    config = read_config(content.get("config"), str(path))
    entries = _renamed(_entries(path, content["state_dict"]))
    files = [path, *_complete(entries, path)]
    return replace(config, network=_with_shapes(config.network, entries, path)), entries, files


def _entries(path: Path, state: Mapping[Any, Any]) -> dict[str, Stored]:
    for key, value in state.items():
        if not isinstance(value, Tensor) or not isinstance(key, str):
            raise UsageError(f"{path}: state_dict[{short(key)}]: expected a tensor under a name")
    plain = without_wrappers(state)
    return {plain(key): Stored(path, key, each) for key, each in state.items() if not BUFFERS.fullmatch(key)}


def _renamed(entries: Mapping[str, Stored]) -> dict[str, Stored]:
    """Entries under today's names; torchvision's classifier, which old files carry unused, is left out."""
    renamed: dict[str, Stored] = {}
    for key, entry in entries.items():
        if key.startswith(RGB_PREFIX):
            child, _, rest = key.removeprefix(RGB_PREFIX).partition(".")
            if child == "fc":
                continue
            key = f"{RGB_PREFIX}{TORCHVISION.get(child, child)}.{rest}"
        elif key in ("net.rgb_encoder.fc.weight", "net.rgb_encoder.fc.bias"):
            key = key.replace(".fc.", ".fc.1.")
        if key in renamed:
            path, other = entry.path, renamed[key].key
            raise UsageError(f"{path}: {entry.key} and {other} are two names of one weight")
        renamed[key] = entry
    return renamed


def _complete(entries: dict[str, Stored], path: Path) -> list[Path]:
    """Add the convolutions that a checkpoint lacks as a whole from the files beside it; returns those files."""
    used = []
    for prefix, file, what, own in (
        (DEPTH_PREFIX, DEPTH_FILE, "the depth encoder: put DD-PPO's", DDPPO_PREFIX),
        (RGB_PREFIX, RGB_FILE, "the RGB encoder: put torchvision's", ""),
    ):
        if any(key.startswith(prefix) for key in entries):
            continue
        place = path.parent / file
        if not place.is_file():
            raise UsageError(f"{path} lacks {what} {file.name} at {place}")
        found = ((key, entry) for key, entry in _beside(place).items() if key.startswith(own))
        entries |= _renamed({prefix + key.removeprefix(own): entry for key, entry in found})
        used.append(place)
    return used


def _beside(place: Path) -> dict[str, Stored]:
    """The tensors of another file, with or without a `state_dict` around them."""
    content = read_pickled(place, SETTINGS, checksums=True)
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise UsageError(f"{place}: expected the weights of an encoder, by name")
    return _entries(place, state)


def _with_shapes(config: NetworkConfig, entries: Mapping[str, Stored], path: Path) -> NetworkConfig:
    """The config with what only the weights tell: number of actions and widths of the two ResNets."""

    def rows(key: str, allowed: Sequence[int], expected: str) -> int:
        shape = entries[key].tensor.shape if key in entries else ()
        if not shape:
            raise UsageError(f"{path}: {key} is missing: these are not the weights of a {config.kind} of VLN-CE")
        if shape[0] not in allowed:
            raise UsageError(f"{path}: {entries[key].key} {list(shape)}: expected {expected}")
        return shape[0]

    return replace(
        config,
        num_actions=rows("action_distribution.linear.weight", (4, 6), "4 actions, or 6 with looking up and down"),
        rgb_width=rows(RGB_PREFIX + "0.weight", range(1, 1025), "1 to 1024 channels"),
        depth_planes=rows(DEPTH_PREFIX + "backbone.conv1.0.weight", range(2, 1025, 2), "2, 4, ... 1024 channels"),
    )


def _copied(entry: Stored) -> Tensor:
    """A tensor in memory of its own, not a view of a file that may be replaced."""
    tensor = entry.tensor.detach().to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    if not bool(torch.isfinite(tensor).all()):
        raise UsageError(f"{entry.path}: {entry.key} holds numbers that are not finite")
    return tensor


def _read_folder(folder: Path) -> Config:
    path = folder / CONFIG
    values = read_json(path)
    if values.pop("model_type", None) != MODEL_TYPE:
        raise UsageError(f"{path}: model_type: expected {MODEL_TYPE!r}")
    config = validated(Config, json.dumps(values), path)
    network, words = config.network, len(config.vocabulary)
    if network.reads != TOKENS:
        raise UsageError(f"{path}: network.reads: expected {TOKENS!r}, found {short(network.reads)}")
    if words and network.vocab_size != words + 2:
        raise UsageError(f"{path}: network.vocab_size: expected {words + 2}, 2 more than the vocabulary has")
    return config


def save_folder(policy: Policy, config: Config, folder: Path, without: str | None = None) -> None:
    """Write a checkpoint folder, which appears at its name only when complete.

    without: weights whose names begin so are not written.
    """
    values = {"model_type": MODEL_TYPE, **asdict(replace(config, network=policy.config))}
    kept = {
        name: each.detach().contiguous()
        for name, each in policy.state_dict().items()
        if without is None or not name.startswith(without)
    }
    with appearing(folder, "checkpoint") as made:
        (made / CONFIG).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        save_file(kept, made / SINGLE)
        shutil.copymode(made / CONFIG, made / SINGLE)  # safetensors keeps them from everybody else


MOST_WORDS = 5000


def create(preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
    """Write a checkpoint folder with random weights and the words of `texts`. The same arguments give the same
    bytes."""
    counts = Counter(word for text in texts for word in words_of(text))
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:MOST_WORDS]
    config = PRESETS[preset]
    config = replace(
        config,
        network=replace(config.network, vocab_size=len(frequent) + 2),
        vocabulary=tuple(frequent),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = Policy(config.network)
    save_folder(policy, config, folder)
