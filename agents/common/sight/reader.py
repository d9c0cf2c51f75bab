"""Frames of training samples as SigLIP takes them: read, jittered or kept, or by what is known of features."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image

from agents.common.packing.frames import Frame, Known, frame_key
from agents.common.sight.augment import augment
from agents.common.sight.decoding import frame_count, frames_at
from agents.common.sight.pictures import content_of, decoded
from agents.common.towers.siglip import network_input, resize
from vlnbench.training.kept_frames import KeptFrames, keep_frames, kept_name

REMEDY = "extract it again"
BLACK = frame_key(b"black")
"""Key of a black frame, which there is no file of."""


class FrameReader:
    """Reads the frames of samples as SigLIP takes them: resized, with `augmented` jittered.

    With `known`, frames whose features it returns are not decoded, which excludes `augmented`.
    """

    def __init__(self, image_size: int, augmented: bool = False, known: Known | None = None) -> None:
        if augmented and known is not None:
            raise ValueError("augmented frames have no features that could be known")
        self._image_size = image_size
        self._augmented = augmented
        self._known = known
        self._kept: KeptFrames | None = None

    def read(self, paths: Sequence[Path], rng: random.Random) -> torch.Tensor | list[Frame]:
        """Frames as float32 (n, 3, size, size), or with their keys where features are kept."""
        if self._known is None:
            return network_input([self._frame(path, rng) for path in paths])
        return [self._keyed_frame(path, self._known) for path in paths]

    def behind_black(self, paths: Sequence[Path | None], rng: random.Random) -> torch.Tensor | list[Frame]:
        """As `read`, after as many black frames as there are None."""
        there = [path for path in paths if path is not None]
        count = len(paths) - len(there)
        if self._known is None:
            frames = self.read(there, rng) if there else self._black[None][:0]
            return torch.cat([self._black.expand(count, -1, -1, -1), torch.as_tensor(frames)])
        return [self._black_frame(self._known)] * count + [self._keyed_frame(path, self._known) for path in there]

    def video(self, path: Path, choose: Callable[[int], Sequence[int]]) -> torch.Tensor | list[Frame]:
        """As `read`, the frames of a video of which `choose` gives the numbers when told how many there are; below
        0: black ones. Nothing is jittered."""
        numbers = choose(frame_count(path))
        if self._known is None:
            shown = {number: resize(each, self._image_size) for number, each in frames_at(path, numbers).items()}
            black = np.zeros((self._image_size, self._image_size, 3), np.uint8)
            return network_input([shown.get(number, black) for number in numbers])
        content = content_of(path, REMEDY)
        keys = {number: frame_key(content + b"%d" % number) for number in numbers if number >= 0}
        known = {number: self._known(key) for number, key in keys.items()}
        lost = [number for number, features in known.items() if features is None]
        resized = {number: resize(each, self._image_size) for number, each in frames_at(path, lost).items()}
        pixels = {number: network_input([each])[0] for number, each in resized.items()}
        black_frame = self._black_frame(self._known)
        return [
            Frame(keys[number], known[number], pixels.get(number)) if number >= 0 else black_frame
            for number in numbers
        ]

    @property
    def _black(self) -> torch.Tensor:
        return torch.full((3, self._image_size, self._image_size), -1.0)

    def _black_frame(self, known: Known) -> Frame:
        features = known(BLACK)
        return Frame(BLACK, features, None if features is not None else self._black)

    def keeping(self, folder: Path, file: Path, items: Sequence[Sequence[Path]]) -> FrameReader:
        """A reader of one set's resized frames, which are kept in `folder`; `file` tells the set.

        items: the images of every item of the set. Raises UsageError if a frame cannot be read, or the folder not
        be written.
        """
        if self._augmented or self._known is not None:
            raise ValueError("frames are kept that are always the same and always read")
        size = self._image_size
        name, drawn = kept_name(file, (each[0] for each in items), size, PIL.__version__), random.Random(0)

        def of_item(item: int) -> NDArray[np.uint8]:
            return np.stack([self._frame(path, drawn) for path in items[item]])

        reader = FrameReader(size)
        reader._kept = keep_frames(folder, name, map(len, items), 3 * size**2, of_item)
        return reader

    def shown(
        self, item: int, which: Sequence[int], files: Callable[[], Sequence[Path]], rng: random.Random
    ) -> torch.Tensor | list[Frame]:
        """As `read`, of some images of an item of the set, by position; files: where these are."""
        if self._kept is None:
            return self.read(files(), rng)
        frames = self._kept.frames(item, which)
        return network_input(frames.reshape(len(frames), self._image_size, self._image_size, 3))

    def _frame(self, path: Path, rng: random.Random) -> NDArray[np.uint8]:
        def seen(image: Image.Image) -> NDArray[np.uint8]:
            image = image.convert("RGB")
            return resize(augment(image, rng) if self._augmented else image, self._image_size)

        return decoded(path, seen, REMEDY)

    def _keyed_frame(self, path: Path, known: Known) -> Frame:
        content = content_of(path, REMEDY)
        key = frame_key(content)
        if (features := known(key)) is not None:
            return Frame(key, features, None)
        frame = decoded(path, lambda image: resize(image, self._image_size), REMEDY, content)
        return Frame(key, None, network_input([frame])[0])
