"""Frames of a batch whose features a frozen tower may have made before: each once, known ones beside the others.

A tower's features depend on one frame and on nothing that trains beside a frozen tower, so they can be kept. A
frame is known by the hash of its file's content: where its features are kept, it is not even decoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import PIL
import torch
from PIL import features as pillow
from torch import Tensor, nn

from vlnbench.errors import UsageError

Known = Callable[[str], "Tensor | None"]
"""Features (patches, width) by a frame's key, None where they are not known."""


class Frame(NamedTuple):
    """A frame, or several in order, by a key: features (patches, width) if they are known, else pixels."""

    key: str
    features: Tensor | None
    pixels: Tensor | None


@dataclass(frozen=True)
class Frames:
    """The frames of a batch, each once.

    `order[i]` are the frames of sample i as positions in what is known, (K, patches, width), followed by what is
    not: `pixels`, (U, ...) or a list where they differ in size, under `keys`. Either is empty where there is none.
    """

    order: list[list[int]]
    known: Tensor
    keys: list[str]
    pixels: Tensor | list[Tensor]


def frame_key(content: bytes) -> str:
    """Key of a frame by the content of its image file."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def pack(samples: Sequence[Sequence[Frame]]) -> Frames:
    """The frames of several samples as few large tensors, which is what passing them between processes costs.

    Raises UsageError where features differ in shape.
    """
    unique = {frame.key: frame for frames in samples for frame in frames}
    known = {key: frame.features for key, frame in unique.items() if frame.features is not None}
    unknown = {key: frame.pixels for key, frame in unique.items() if frame.pixels is not None}
    position = {key: i for i, key in enumerate([*known, *unknown])}
    if len({features.shape for features in known.values()}) > 1:
        raise UsageError("--feature-cache: frames of a batch differ in shape; give --batch 1")
    pixels = list(unknown.values())
    alike = len({each.shape for each in pixels}) <= 1
    return Frames(
        order=[[position[frame.key] for frame in frames] for frames in samples],
        known=_stacked(list(known.values())),
        keys=list(unknown),
        pixels=_stacked(pixels) if alike else pixels,
    )


def _stacked(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors) if tensors else torch.empty(0)


def fingerprint(
    tower: nn.Module,
    device: torch.device,
    facts: Sequence[object],
    code: Sequence[ModuleType],
    behind: str | None = None,
) -> str:
    """Hash of all that a tower's features depend on beside the frame.

    Its weights in the precision they compute in, the machine's arithmetic, the libraries that decode, resize and
    compute. facts: what else decides, such as sizes and attention. code: modules that compute or prepare.
    behind: beginning of the names of those weights that come behind what is kept.
    """
    on_cuda = device.type == "cuda"
    arithmetic = (
        [torch.cuda.get_device_name(device), torch.backends.cuda.matmul.allow_tf32]
        if on_cuda
        else [torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()]
    )
    libraries = [torch.__version__, PIL.__version__, pillow.version("jpg")]
    digest = hashlib.sha256(repr([*facts, device.type, *arithmetic, *libraries]).encode())
    for module in code:
        digest.update(Path(str(module.__file__)).read_bytes())
    for name, tensor in tower.state_dict().items():  # with the statistics of batch norm
        if behind is not None and name.startswith(behind):
            continue
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
