"""The JanusVLN network, Qwen2.5-VL whose images carry what VGGT sees in them, its checkpoint folders and answers.

Format: the `qwen2_5_vl` config of transformers 4.50 with JanusVLN's additions (github.com/MIV-XJTU/JanusVLN).
Names of parameters are those of the published checkpoints. VGGT's sizes are nowhere in the config.

Every step asks anew: the geometry of the current frame is added to all images of the question, so nothing of the
language model's work on one step can be used in the next. What Qwen's tower sees in a frame depends on that frame
alone and is kept, where the original encodes the whole history again at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from agents.common.checkpoints import weights
from agents.common.checkpoints.files import GenerationSettings, flat_fields
from agents.common.decoders.generate import Choose
from agents.common.inputs import INPUTS
from agents.common.language.network import Output
from agents.common.qwen2_5_vl.config import BLOCK, PATCH, QwenConfig, config_file, qwen_config, released_name
from agents.common.qwen2_5_vl.decode import Decoder as Answers
from agents.common.qwen2_5_vl.image import Grid, grid_of
from agents.common.qwen2_5_vl.language import expand
from agents.common.qwen2_5_vl.layers import PatchMerger
from agents.common.qwen2_5_vl.network import QwenNetwork
from agents.common.qwen2_5_vl.vision import VisionTower
from agents.common.towers.geometry_sizes import GeometrySizes
from agents.common.towers.vggt import FIRST, RECENT, FrameCache, Geometry, geometry_features
from agents.common.towers.vggt_sizes import geometry_sizes
from agents.common.upload import upload
from agents.janusvln.options import (
    ARCHITECTURE,
    GEOMETRY_MERGER,
    LLM,
    MLP,
    VGGT,
    VISION,
    JanusVLNInputs,
    JanusVLNShown,
    image_width,
)
from vlnbench.errors import UsageError

WIDTH, HISTORY = JanusVLNInputs.image_width, JanusVLNInputs.history
"""Pixels to which frames are scaled and earlier frames of a question, where a config says nothing else."""


@dataclass(frozen=True)
class JanusVLNConfig(QwenConfig):
    """Sizes of one checkpoint. `geometry_weight` is the factor lambda of geometry when it is added to images.

    `image_width`, pixels to which frames are scaled, and `num_history`, earlier frames of a question, are fixed in
    the published code and said by checkpoints that were trained with others.
    """

    merger_hidden_size: int
    geometry_weight: float
    image_width: int
    num_history: int

    def shown(self, width: int | None = None, history: int | None = None) -> JanusVLNConfig:
        """The same for images of another width and another number of earlier frames; None leaves them.

        Raises UsageError for a width that is no whole number of embeddings.
        """
        changed: dict[str, Any] = {}
        if width is not None:
            changed["image_width"] = image_width(width, f"--image-width {width}")
        if history is not None:
            changed["num_history"] = history
        return replace(self, **changed, raw=dict(self.raw) | changed) if changed else self

    def shown_size(self, columns: int, rows: int) -> tuple[int, int]:
        """Height and width of a frame of so many pixels as the network sees it."""
        return min(resized_height(columns, rows, self.image_width), self.image_width), self.image_width


def read_config(folder: Path) -> JanusVLNConfig:
    """Read config.json of a checkpoint folder.

    Raises UsageError for a folder that holds no JanusVLN checkpoint and for the first field that does not fit.
    """
    return parse_config(*config_file(folder))


def parse_config(raw: Mapping[str, Any], where: str) -> JanusVLNConfig:
    """The same from a config.json's content; `where` is its name in messages."""
    qwen = qwen_config(raw, where, ARCHITECTURE, "JanusVLN")
    fields = flat_fields(raw, where)
    fields.choice("reference_frame", "first", default="first")
    fields.choice("add_ground_classifier", False, default=False)
    return JanusVLNConfig(
        **vars(qwen),
        merger_hidden_size=fields.integer("vggt_merger_hidden_dim", default=4096),
        geometry_weight=fields.number("lam"),
        image_width=image_width(fields.integer("image_width", default=WIDTH), f"{where}: image_width"),
        num_history=fields.integer("num_history", default=HISTORY),
    )


def inputs_of(config: JanusVLNConfig, folder: Path | None, given: JanusVLNShown) -> JanusVLNInputs:
    """What a checkpoint's network sees and how it is asked, and options over it. folder: None for random weights.

    Where no inputs.json says so, `config` knows history and width. The published code trains in words of its own
    and asks in others afterwards: what learns from labels begins with those.
    """
    labels = getattr(given, "learns_from", None) == "labels"
    saved = folder and JanusVLNInputs.read(folder)
    own = saved or JanusVLNInputs(
        history=config.num_history,
        image_width=config.image_width,
        wording="published" if labels else "evaluation",
    )
    found = own.over(given)
    where = f"{folder}: {INPUTS}: " if given.image_width is None else "--image-width "
    image_width(found.image_width, f"{where}{found.image_width}")
    if found.history < 1:
        raise UsageError(f"{folder}: {INPUTS}: history {found.history}: expected 1 or more")
    return found


def resize(frame: NDArray[np.uint8], width: int = WIDTH) -> NDArray[np.uint8]:
    """An RGB frame scaled to `width`, bicubic, as uint8 (height, width, 3).

    The height is rounded to whole patches; what is above `width` of it is cut off at the top and bottom alike. The
    order of the multiplications matters: 480 rows of 640 become 490 because 34.5 is met from above.

    Raises ValueError for a frame so flat that not one embedding is left of it.
    """
    image = Image.fromarray(frame)
    height = resized_height(image.width, image.height, width)
    if height < BLOCK:
        raise ValueError(f"frames of {image.width} x {image.height} pixels are too flat for JanusVLN")
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    top = max((height - width) // 2, 0)
    return pixels[top : top + width].copy()


def resized_height(columns: int, rows: int, width: int = WIDTH) -> int:
    """Height of a frame of so many pixels when it is scaled to `width`, before anything is cut off."""
    return round(rows * (width / columns) / PATCH) * PATCH


def part_of(name: str) -> str:
    """Which part a parameter belongs to; see `JanusVLNTrains.parts`."""
    if name.startswith("visual."):
        return MLP if name.startswith("visual.merger.") else VISION
    return VGGT if name.startswith("vggt.") else GEOMETRY_MERGER if name.startswith("merger.") else LLM


class JanusVLN(QwenNetwork):
    """Both encoders, both mergers and the language model of one checkpoint.

    `eager` computes the language model's attention without a fused kernel. Parameters are created in torch's
    default dtype on its default device. VGGT never trains.
    """

    config: JanusVLNConfig

    def __init__(self, config: JanusVLNConfig, sizes: GeometrySizes, eager: bool = False) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.visual = VisionTower(config.vision, config.hidden_size)
        self.vggt = Geometry(sizes).requires_grad_(False)
        self.merger = PatchMerger(2 * sizes.width, config.merger_hidden_size, config.hidden_size)
        self.add_language(eager)

    def geometry_features(self, frames: Tensor, caches: Sequence[FrameCache]) -> Tensor:
        """What VGGT sees in the next frame of every cache, uint8 (N, height, width, 3).

        Returns (N, 4 * embeddings, 2 * width): only the patches that have an embedding, the four of an embedding
        one after the other. In half precision VGGT runs under autocast, as in the original.
        """
        return geometry_features(self.vggt, frames.to(self.device), caches)

    def final_geometries(self, samples: Sequence[Tensor]) -> list[Tensor]:
        """Geometry features (4 * embeddings, 2 width) of every sample's last frame, seen after all its others."""
        found: list[Tensor] = self.vggt([frames.to(self.device) for frames in samples])
        return found

    def fuse(self, images: Tensor, geometry: Tensor) -> Tensor:
        """Embeddings of a sample's images (k, embeddings, hidden), each with the geometry of its current frame
        (embeddings, hidden) added: k is the sample's own, whatever else is in the batch."""
        return images + self.config.geometry_weight * geometry

    def forward(
        self,
        input_ids: Sequence[Sequence[int]],
        frames: Sequence[Tensor] | None,
        labels: Sequence[Sequence[int]] | None = None,
        *,
        grids: Sequence[Grid] | None = None,
        towers: Sequence[Tensor] | None = None,
        geometries: Sequence[Tensor] | None = None,
        want_logits: bool = True,
        at_labels: bool = False,
    ) -> Output:
        """One training step's forward pass; see `output`.

        `input_ids` hold one image token per frame; `frames[i]` is uint8 (k, height, width, 3), the current frame
        last. VGGT sees a sample's frames one after the other and forgets none. Samples are padded on the right.

        What an encoder sees may be given, which does not change while it is frozen: `towers`, per sample (k,
        patches, width), and `geometries`, of its current frame, (1, patches, 2 width). With both, `grids` stand
        for the frames, which may be None.
        """
        if grids is None:
            grids = [grid_of(*seen.shape[1:3]) for seen in frames or ()]
        if towers is None:
            towers = together(self.tower_features, frames or ())
        images = together(self.visual.merger, towers)
        if geometries is None:
            geometries = [found[None] for found in self.final_geometries(frames or ())]
        merged = together(self.merger, [seen.to(self.device) for seen in geometries])
        token = self.config.image_token
        rows = [
            expand(ids, [grid] * len(shown), token)
            for ids, grid, shown in zip(input_ids, grids, images, strict=True)
        ]
        fused = [self.fuse(*pair).flatten(0, 1) for pair in zip(images, merged, strict=True)]
        hidden = self.hidden(rows, torch.cat(fused))
        return self.output(hidden, rows, input_ids, labels, want_logits, at_labels)


def together(run: Callable[[Tensor], Tensor], parts: Sequence[Tensor]) -> list[Tensor]:
    """What a function makes of every tensor's rows, those of tensors of one shape at once."""
    found: dict[int, Tensor] = {}
    for shape in dict.fromkeys(part.shape[1:] for part in parts):
        alike = [i for i, part in enumerate(parts) if part.shape[1:] == shape]
        made = run(torch.cat([parts[i] for i in alike]))
        found.update(zip(alike, torch.split(made, [len(parts[i]) for i in alike]), strict=True))
    return [found[i] for i in range(len(parts))]


def shapes(folder: Path, *, attn: str = "sdpa", trust_pickle: bool = False) -> JanusVLN:
    """The network of a checkpoint folder without its numbers, on the meta device.

    Raises UsageError for a folder or config that is no JanusVLN checkpoint, for pickled, damaged or absent weight
    files and for keys or shapes that do not match.
    """
    config = read_config(folder)
    paths = weights.weight_files(folder, trust_pickle)
    entries = weights.read_entries(paths, named=released_name(config.tied))
    sizes = geometry_sizes({name: entry.shape for name, entry in entries.items()}, str(folder))
    with torch.device("meta"):
        model = JanusVLN(config, sizes, attn == "eager")
    weights.check_entries(entries, model, folder)
    return model


def load(
    folder: Path,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    attn: str = "sdpa",
    trust_pickle: bool = False,
    quantize: str | None = None,
) -> JanusVLN:
    """Load a checkpoint folder, in evaluation mode; `dtype` defaults to the checkpoint's. quantize:
    see `weights.fill`.

    Tensors go to `device` one at a time, so that the model is never held twice. Raises UsageError as `shapes`,
    before any tensor is read.
    """
    model = shapes(folder, attn=attn, trust_pickle=trust_pickle)
    paths = weights.weight_files(folder, trust_pickle)
    named = released_name(model.config.tied)
    weights.fill(model, paths, dtype or model.config.dtype, torch.device(device), named, quantize)
    model.vggt.requires_grad_(False)
    return model.eval()


@dataclass
class Memory:
    """One episode so far.

    `images` are the tower's embeddings (embeddings, hidden) of every frame, in the host's memory; `current` is the
    last frame's grid and its geometry (embeddings, hidden) in the light of those before. Where answers are learned
    from: `frames`, resized, and what VGGT has `seen` in the last one, (patches, 2 width), in the host's memory.
    """

    cache: FrameCache = field(default_factory=FrameCache)
    images: list[Tensor] = field(default_factory=list)
    current: tuple[Grid, Tensor] | None = None
    frames: list[NDArray[np.uint8]] = field(default_factory=list)
    seen: Tensor | None = None


@dataclass(frozen=True)
class Question:
    """A request for an answer: ids with a placeholder per image, and the frames that these show, by number."""

    slot: int
    input_ids: list[int]
    steps: list[int]


class Decoder(Answers[Question]):
    """Remembers frames and answers questions for any number of slots; see there."""

    model: JanusVLN

    def __init__(
        self,
        model: JanusVLN,
        settings: GenerationSettings,
        *,
        max_new_tokens: int = 24,
        max_batch: int = 8,
        window: tuple[int, int] = (FIRST, RECENT),
        choose: Choose | None = None,
        graphs: bool = False,
    ) -> None:
        """`window`: of how many first and recent frames VGGT keeps keys and values."""
        super().__init__(model, settings, max_new_tokens, max_batch, choose, graphs)
        self._learns, self._window = choose is not None, window
        self._memories: dict[int, Memory] = {}

    def begin(self, slot: int) -> None:
        """Forget what the slot has seen."""
        self._memories[slot] = Memory(FrameCache(*self._window))

    def memory(self, slot: int) -> Memory:
        return self._memories[slot]

    @torch.inference_mode()
    def see(self, frames: Mapping[int, NDArray[np.uint8]]) -> None:
        """Remember the next frame of each slot, resized, uint8 (height, width, 3)."""
        order = sorted(frames, key=lambda slot: frames[slot].shape)
        for _, alike in groupby(order, key=lambda slot: frames[slot].shape):
            self._batches.run(list(alike), lambda slots: self._see(slots, frames), self._unsee)

    def _unsee(self, slots: Sequence[int]) -> None:
        """Forget frames that were seen in part; the next ones are written over what caches have of them."""
        for memory in map(self.memory, slots):
            memory.cache.seen = len(memory.images)

    def _see(self, slots: Sequence[int], frames: Mapping[int, NDArray[np.uint8]]) -> Sequence[int]:
        """The same for a batch of frames of one size."""
        memories = [self._memories[slot] for slot in slots]
        shown = upload(torch.from_numpy(np.stack([frames[slot] for slot in slots])), self.model.device)
        looked = look(self.model, shown, [memory.cache for memory in memories])
        for memory, image, geometry in zip(memories, looked.images.cpu(), looked.geometries, strict=True):
            memory.images.append(image)
            memory.current = grid_of(*shown.shape[1:3]), geometry
        if self._learns:
            for slot, memory, seen in zip(slots, memories, looked.features.cpu(), strict=True):
                memory.frames.append(frames[slot])
                memory.seen = seen
        return slots

    def grids(self, question: Question) -> list[Grid]:
        return [self._current(question.slot)[0]] * len(question.steps)

    def fused(self, question: Question) -> Tensor:
        images = self._memories[question.slot].images
        shown = upload(torch.stack([images[step] for step in question.steps]), self.model.device)
        return self.model.fuse(shown, self._current(question.slot)[1]).flatten(0, 1)

    def _current(self, slot: int) -> tuple[Grid, Tensor]:
        """Grid and geometry of the frame that the slot saw last."""
        found = self._memories[slot].current
        if found is None:
            raise ValueError(f"slot {slot} has seen no frame")
        return found


class Looked(NamedTuple):
    """Of the next frame of N slots: its embeddings, those of its geometry, both (N, embeddings, hidden), and what
    VGGT saw, of which these are made, (N, patches, 2 width)."""

    images: Tensor
    geometries: Tensor
    features: Tensor


def look(model: JanusVLN, frames: Tensor, caches: Sequence[FrameCache]) -> Looked:
    """See the next frame of every cache; see `JanusVLN.geometry_features`."""
    images = model.visual.merger(model.tower_features(frames))
    features = model.geometry_features(frames, caches)
    return Looked(images, model.merger(features), features)
