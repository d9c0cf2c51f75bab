"""Training samples of JanusVLN, one for every step of a walk, as the published code builds them."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from agents.common.qwen2_5_vl.config import BLOCK, MERGE
from agents.common.qwen2_5_vl.image import Grid, grid_of
from agents.common.qwen2_5_vl.network import IGNORED
from agents.janusvln.config import JanusVLNConfig
from agents.janusvln.image import resize
from agents.janusvln.prompt import Prompts, shown_steps
from agents.janusvln.training.features import GEOMETRIES, TOWERS, Seen, frame_key, geometry_key, mix
from agents.janusvln.training.walks import WalkSet
from vlnbench.errors import UsageError
from vlnbench.training.family.trains import Known
from vlnbench.util.durable.limits import regular


@dataclass(frozen=True)
class Reader:
    """How frames are read: scaled to `width`; with `known`, what encoders make of them is looked up first.

    `sees`: whether Qwen's tower is frozen, so that its features are known, too.
    """

    width: int
    known: Known | None = None
    sees: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One step of a walk.

    input_ids: L token ids with one placeholder per image. labels: L ids, `IGNORED` where the loss does not look.
    grid: embeddings of its images. frames: uint8 (k, height, width, 3), the current one last; None where nothing
    has to look at them again. towers, geometries: what encoders look at, where features are kept.
    """

    input_ids: list[int]
    labels: list[int]
    grid: Grid
    frames: Tensor | None
    towers: list[Seen] | None = None
    geometries: list[Seen] | None = None


class StepSamples:
    """The steps of a set's walks, as samples. `published`: questions are those of the published training."""

    def __init__(
        self, content: WalkSet, prompts: Prompts, config: JanusVLNConfig, reader: Reader, published: bool
    ) -> None:
        self.content = content
        self._prompts, self._config, self._reader = prompts, config, reader
        self._published = published

    def __len__(self) -> int:
        return self.content.windows

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Build one sample; nothing is drawn."""
        walk_number, text, step = self.content.keys[index]
        walk = self.content.walks[walk_number]
        paths = [walk.folder / walk.frames[shown] for shown in shown_steps(step, self._config.num_history)]
        try:
            ids, labels = self.written(walk.texts[text], len(paths), walk.actions[step].name)
        except ValueError as error:
            raise UsageError(f"{self.content.file}: {walk.name}: {error}") from error
        if self._reader.known is None:
            frames = torch.stack([_decoded(path, _content(path), self._reader.width) for path in paths])
            return Sample(ids, labels, grid_of(*frames.shape[1:3]), frames)
        return self._keyed(ids, labels, paths, self._reader.known)

    def written(self, instruction: str, images: int, label: str) -> tuple[list[int], list[int]]:
        """Token ids and labels of a question with its answer."""
        told = self._prompts.answer(label)
        if self._published:
            asked = self._prompts.lesson(instruction, images)
        else:
            asked, told = self._prompts.question(instruction, images), told[:-1]  # answers end before the newline
        return asked + told, [IGNORED] * len(asked) + told

    def _keyed(self, ids: list[int], labels: list[int], paths: Sequence[Path], known: Known) -> Sample:
        """The same with what is known in the place of frames."""
        contents = [_content(path) for path in paths]
        keys = [frame_key(content) for content in contents]
        geometry = known(geometry_key(keys))
        sees, width = self._reader.sees, self._reader.width
        towers = [known(key) if sees else None for key in keys]
        needed = [i for i, tower in enumerate(towers) if geometry is None or tower is None]
        frames = {i: _decoded(paths[i], contents[i], width) for i in needed}
        whole = torch.stack([frames[i] for i in needed]) if len(needed) == len(keys) else None
        seen = Seen(geometry_key(keys), geometry, whole if geometry is None else None)
        return Sample(
            ids,
            labels,
            _grid(width, frames, [geometry, *towers]),
            None if sees else whole,
            [
                Seen(key, tower, frames[i] if tower is None else None)
                for i, (key, tower) in enumerate(zip(keys, towers, strict=True))
            ]
            if sees
            else None,
            [seen],
        )


def _grid(width: int, frames: dict[int, Tensor], known: Sequence[Tensor | None]) -> Grid:
    """The embeddings of a sample's images, from a frame or from features of one."""
    for frame in frames.values():
        return grid_of(*frame.shape[:2])
    columns = width // BLOCK
    patches = next(len(each) for each in known if each is not None)
    return Grid(patches // MERGE**2 // columns, columns)


def _content(path: Path) -> bytes:
    try:
        return regular(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); extract it again") from error


def _decoded(path: Path, content: bytes, width: int) -> Tensor:
    """A frame scaled for the network, uint8 (height, width, 3)."""
    try:
        with Image.open(io.BytesIO(content)) as picture:
            return torch.from_numpy(resize(np.asarray(picture.convert("RGB")), width))
    except (OSError, SyntaxError, ValueError) as error:  # SyntaxError is Pillow's for broken PNG files
        raise UsageError(f"{path}: cannot be read as a frame ({error}); extract it again") from error


def collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as the arguments of `JanusVLN.forward`; whoever has features puts those in the place of `Mixed`."""
    frames = [sample.frames for sample in samples if sample.frames is not None]
    batch: dict[str, Any] = {
        "input_ids": [sample.input_ids for sample in samples],
        "frames": frames or None,
        "labels": [sample.labels for sample in samples],
        "grids": [sample.grid for sample in samples],
    }
    for name in (TOWERS, GEOMETRIES):
        seen = [getattr(sample, name) for sample in samples]
        if seen[0] is not None:
            batch[name] = mix(seen)
    return batch
