"""What frozen encoders make of frames, known by the frames' content: keys, and batches that mix known and unknown.

What Qwen's tower sees in a frame depends on that frame alone. What VGGT sees in the last frame of a sample depends
on the frames before it, so it is known by all of them in order: it is found again when the sample is seen again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import PIL
import torch
from torch import Tensor, nn

from agents.common.qwen2_5_vl import image as cutting
from agents.common.qwen2_5_vl import layers, vision
from agents.common.qwen2_5_vl.image import grid_of, patches
from agents.common.qwen2_5_vl.vision import VisionTower
from agents.common.towers import vggt as geometry
from agents.common.towers.vggt import Geometry
from agents.janusvln import network as own
from agents.janusvln.network import JanusVLN
from vlnbench.errors import UsageError
from vlnbench.training.family.trains import Features

TOWERS, GEOMETRIES = "towers", "geometries"
"""Entries of a batch."""


class Seen(NamedTuple):
    """What an encoder looks at, by its key: features if they are known, else pixels, uint8."""

    key: str
    features: Tensor | None
    pixels: Tensor | None


@dataclass(frozen=True)
class Mixed:
    """What an encoder looks at in a batch, each thing once.

    `order[i]` are those of sample i as positions in what is known, (K, patches, width), followed by `pixels` under
    `keys`.
    """

    order: list[list[int]]
    known: Tensor
    keys: list[str]
    pixels: list[Tensor]


def frame_key(content: bytes) -> str:
    """Key of a frame by the content of its file."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def geometry_key(frames: Sequence[str]) -> str:
    """Key of the last frame's geometry by the keys of all frames in order."""
    return hashlib.blake2b(" ".join(frames).encode(), digest_size=16, person=b"geometry").hexdigest()


def mix(samples: Sequence[Sequence[Seen]]) -> Mixed:
    """What several samples look at, as one. Raises UsageError where images differ in size."""
    unique = {each.key: each for seen in samples for each in seen}
    known = {key: each.features for key, each in unique.items() if each.features is not None}
    unknown = {key: each.pixels for key, each in unique.items() if each.pixels is not None}
    sizes = {tensor.shape[-2:] for tensor in known.values()}
    if len(sizes) > 1:
        raise UsageError("--feature-cache: frames of a batch differ in shape; give --batch 1")
    position = {key: i for i, key in enumerate([*known, *unknown])}
    return Mixed(
        order=[[position[each.key] for each in seen] for seen in samples],
        known=torch.stack(list(known.values())) if known else torch.empty(0),
        keys=list(unknown),
        pixels=list(unknown.values()),
    )


def cached_features(network: JanusVLN, device: torch.device) -> list[Features]:
    """What of a network can be kept: VGGT's features, and where it is frozen those of Qwen's tower."""
    kept = []
    if not any(parameter.requires_grad for parameter in network.visual.blocks.parameters()):
        sizes = (-1, network.config.vision.width)
        kept.append(_features(network, network.visual, _see, sizes, TOWERS, device))
    sizes = (-1, 2 * network.vggt.aggregator.sizes.width)
    return [*kept, _features(network, network.vggt, _measure, sizes, GEOMETRIES, device)]


def _features(
    network: JanusVLN, tower: nn.Module, encode: object, shape: tuple[int, ...], entry: str, device: torch.device
) -> Features:
    names = {TOWERS: "vision", GEOMETRIES: "geometry"}
    return Features(
        tower=tower,
        encode=encode,  # type: ignore[arg-type]
        shape=shape,
        dtype=network.dtype,
        fingerprint=_fingerprint(network, tower, device),
        entry=entry,
        phase=names[entry],
    )


def _see(tower: nn.Module, frames: Tensor) -> Tensor:
    """Features of frames (N, height, width, 3)."""
    assert isinstance(tower, VisionTower)
    shown = patches(frames.to(torch.uint8)).to(frames.dtype)
    return tower.features(shown, grid_of(*frames.shape[1:3]))


def _measure(vggt: nn.Module, samples: Tensor) -> Tensor:
    """Features of the last frames of samples (N, k, height, width, 3)."""
    assert isinstance(vggt, Geometry)
    return torch.stack(vggt(list(samples.to(torch.uint8))))


def _fingerprint(network: JanusVLN, tower: nn.Module, device: torch.device) -> str:
    """Hash of all that features depend on beside the frames: weights, sizes, code, libraries, arithmetic."""
    arithmetic = (
        [torch.cuda.get_device_name(device), torch.backends.cuda.matmul.allow_tf32]
        if device.type == "cuda"
        else [torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()]
    )
    facts = [
        type(tower).__name__,
        network.config.vision,
        network.vggt.aggregator.sizes,
        network.config.image_width,
        network.dtype,
        device.type,
        *arithmetic,
        torch.__version__,
        PIL.__version__,
    ]
    digest = hashlib.sha256(repr(facts).encode())
    for module in (own, cutting, vision, geometry, layers):
        digest.update(Path(str(module.__file__)).read_bytes())
    for name, parameter in tower.named_parameters():
        if not name.startswith("merger."):  # that of Qwen's tower comes behind what is kept
            digest.update(name.encode())
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
