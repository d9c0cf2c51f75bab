"""VGGT's aggregator (arXiv 2503.11347): geometry of a frame in the light of the frames before it.

A DINOv2 encoder (arXiv 2304.07193) makes patch tokens, to which a camera token and register tokens are added;
blocks that see one frame alternate with blocks that see all frames. Frames come one at a time; what global blocks
need of earlier ones is kept: of the first 8 and of the last 48.

Keys are kept as attention takes them, normed and rotated: positions are those inside a frame, so they stay as they
are however many frames come and go, and the order of the kept frames does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.common.qwen2_5_vl.config import MERGE, PATCH
from agents.common.qwen2_5_vl.image import grid_of, scaled
from agents.common.qwen2_5_vl.layers import angles, rotate
from agents.common.towers.geometry_sizes import GeometrySizes
from agents.common.towers.vggt_sizes import Stored, head_shapes
from agents.common.upload import upload

FIRST, RECENT = 8, 48
"""Frames that are kept from the beginning and from the end."""
GROWTH = 8  # frames that a buffer grows by
THETA = 100.0
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Turns = tuple[Tensor, Tensor]
"""Cosine and sine of a frame's tokens, each (tokens, 2, head / 2): half a head turns with the row, half with the
column."""


class FrameCache:
    """Keys and values of one episode's frames for every global block.

    A frame sees all that are kept, and itself. Where these are more than `first` + `recent`, the oldest of the
    recent ones goes: the next frame is written over it. With `recent` None every frame is kept.
    """

    def __init__(self, first: int = FIRST, recent: int | None = RECENT) -> None:
        self.first, self.recent = first, recent
        self.seen = 0
        self._blocks: dict[int, Tensor] = {}

    @property
    def frames(self) -> list[int]:
        """Numbers of the frames that are kept for the next one."""
        if self.recent is None:
            return list(range(self.seen))
        recent = range(max(self.first, self.seen - self.recent), self.seen)
        return [*range(min(self.first, self.seen)), *recent]

    @property
    def bytes(self) -> int:
        return sum(block.nbytes for block in self._blocks.values())

    def put(self, block: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add a frame's keys and values (heads, tokens, head) and return what it sees: (heads, frames * tokens,
        head)."""
        place, count, size = self.seen, self.seen + 1, self.seen + GROWTH
        if self.recent is not None:  # all at once: what grows leaves holes in a GPU's memory that nothing fits in
            room = size = self.first + self.recent + 1
            count = min(count, room)
            if place >= room:
                place = self.first + (place - self.first) % (self.recent + 1)
        buffer = self._blocks.get(block)
        if buffer is None or buffer.shape[2] < count:
            grown = keys.new_empty(2, len(keys), size, *keys.shape[1:])
            if buffer is not None:
                grown[:, :, : buffer.shape[2]] = buffer
            buffer = self._blocks[block] = grown
        buffer[0, :, place], buffer[1, :, place] = keys, values
        return buffer[0, :, :count].flatten(1, 2), buffer[1, :, :count].flatten(1, 2)


class Scale(nn.Module):
    """A learned factor per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Norm(nn.LayerNorm):
    """In float32 under autocast, as CUDA's list has it; the CPU's, otherwise the same here, has it not."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_meta or not torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        return functional.layer_norm(
            x.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps
        )


class GeometryAttention(nn.Module):
    """Self-attention; `normed` norms queries and keys per head."""

    def __init__(self, width: int, heads: int, normed: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.q_norm = Norm(width // heads) if normed else nn.Identity()
        self.k_norm = Norm(width // heads) if normed else nn.Identity()
        self.proj = nn.Linear(width, width)

    def forward(
        self, x: Tensor, turns: Turns | None, block: int = 0, caches: Sequence[FrameCache] | None = None
    ) -> Tensor:
        """x: (N, tokens, width). With `caches`, one per row, tokens see those of earlier frames too."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        if turns is not None:
            q, k = (rotate(part.unflatten(3, (2, -1)), *turns).flatten(3) for part in (q, k))
        q, k = q.to(v.dtype), k.to(v.dtype)
        if caches is None:
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:  # rows have seen different numbers of frames, and each alone is work enough for one kernel
            rows = []
            for i, cache in enumerate(caches):
                keys, values = cache.put(block, k[i], v[i])
                rows.append(functional.scaled_dot_product_attention(q[i : i + 1], keys[None], values[None]))
            mixed = torch.cat(rows)
        out: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(functional.gelu(self.fc1(x)))
        return out


class GeometryBlock(nn.Module):
    """A transformer block of DINOv2's make. `eps` is that of its two norms."""

    def __init__(self, width: int, heads: int, hidden: int, *, normed: bool, eps: float) -> None:
        super().__init__()
        self.norm1 = Norm(width, eps=eps)
        self.attn = GeometryAttention(width, heads, normed)
        self.ls1 = Scale(width)
        self.norm2 = Norm(width, eps=eps)
        self.mlp = MLP(width, hidden)
        self.ls2 = Scale(width)

    def forward(
        self, x: Tensor, turns: Turns | None = None, block: int = 0, caches: Sequence[FrameCache] | None = None
    ) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x), turns, block, caches))
        out: Tensor = x + self.ls2(self.mlp(self.norm2(x)))
        return out


class Encoder(nn.Module):
    """DINOv2 with register tokens (arXiv 2309.16588)."""

    def __init__(self, sizes: GeometrySizes) -> None:
        super().__init__()
        self.sizes = sizes
        width, count = sizes.width, sizes.position_side**2
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.mask_token = nn.Parameter(torch.zeros(1, width))  # in checkpoints; for DINO's own training
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + count, width))
        self.register_tokens = nn.Parameter(torch.zeros(1, sizes.dino_registers, width))
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, width, PATCH, stride=PATCH)
        self.blocks = nn.ModuleList(
            GeometryBlock(width, sizes.heads, sizes.dino_intermediate_size, normed=False, eps=1e-6)
            for _ in range(sizes.dino_depth)
        )
        self.norm = Norm(width, eps=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        """Patch tokens (N, patches, width) of images (N, 3, height, width), sides multiples of a patch."""
        patches = self.patch_embed.get_submodule("proj")(images)
        rows, columns = patches.shape[2:]
        tokens = torch.cat((self.cls_token.expand(len(images), -1, -1), patches.flatten(2).transpose(1, 2)), dim=1)
        tokens = tokens + self._positions(rows, columns).to(tokens.dtype)
        registers = self.register_tokens.expand(len(images), -1, -1)
        tokens = torch.cat((tokens[:, :1], registers, tokens[:, 1:]), dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        out: Tensor = self.norm(tokens)[:, 1 + self.sizes.dino_registers :]
        return out

    def _positions(self, rows: int, columns: int) -> Tensor:
        """The position table for so many patches, resized with antialias where it is of another size."""
        side = self.sizes.position_side
        if (rows, columns) == (side, side):
            return self.pos_embed
        table = self.pos_embed.float()
        planes = table[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
        planes = functional.interpolate(planes, size=(rows, columns), mode="bicubic", antialias=True)
        return torch.cat((table[:, :1], planes.flatten(2).transpose(1, 2)), dim=1)


class Aggregator(nn.Module):
    """The aggregator. JanusVLN looks at its last layer but one; the last is in checkpoints and is not run."""

    def __init__(self, sizes: GeometrySizes) -> None:
        super().__init__()
        self.sizes = sizes
        width = sizes.width
        self.camera_token = nn.Parameter(torch.zeros(1, 2, 1, width))
        self.register_token = nn.Parameter(torch.zeros(1, 2, sizes.registers, width))
        self.patch_embed = Encoder(sizes)
        self.frame_blocks, self.global_blocks = (
            nn.ModuleList(
                GeometryBlock(width, sizes.heads, sizes.intermediate_size, normed=True, eps=1e-5)
                for _ in range(sizes.depth)
            )
            for _ in range(2)
        )

    def forward(self, images: Tensor, caches: Sequence[FrameCache]) -> Tensor:
        """Features (N, patches, 2 * width) of one frame per row, (N, 3, height, width) in [0, 1].

        The frame is the next one of its row's cache, which is changed; all frames of a cache are of one size.
        """
        layers = self.layers(images, caches)
        feature = next(islice(layers, self.sizes.depth - 2, None))
        for cache in caches:
            cache.seen += 1
        return feature[:, 1 + self.sizes.registers :]

    def layers(self, images: Tensor, caches: Sequence[FrameCache]) -> Iterator[Tensor]:
        """Every layer's tokens (N, camera + registers + patches, 2 * width), computed as they are asked for:
        the frame block's beside the global block's."""
        mean, std = (upload(torch.tensor(values), images.device)[:, None, None] for values in (MEAN, STD))
        patches = self.patch_embed(((images - mean) / std).to(self.camera_token.dtype))
        later = upload(torch.tensor([int(cache.seen > 0) for cache in caches]), images.device)
        special = torch.cat((self.camera_token[0, later], self.register_token[0, later]), dim=1)
        tokens = torch.cat((special, patches), dim=1)
        turns = self._turns(images.shape[2] // PATCH, images.shape[3] // PATCH, images.device)
        pairs = zip(self.frame_blocks, self.global_blocks, strict=True)
        for i, (frame_block, global_block) in enumerate(pairs):
            alone = frame_block(tokens, turns)
            tokens = global_block(alone, turns, i, caches)
            yield torch.cat((alone, tokens), dim=-1)

    def frame_bytes(self, height: int, width: int, dtype: torch.dtype) -> int:
        """What a `FrameCache` keeps of a frame of so many pixels."""
        tokens = 1 + self.sizes.registers + (height // PATCH) * (width // PATCH)
        return 2 * (self.sizes.depth - 1) * tokens * self.sizes.width * dtype.itemsize

    def _turns(self, rows: int, columns: int, device: torch.device) -> Turns:
        """Rotations inside a frame: patches are counted from 1, special tokens stand at 0."""
        sides = (torch.arange(1, side + 1, device=device) for side in (rows, columns))
        places = torch.stack(torch.meshgrid(*sides, indexing="ij"), dim=-1).reshape(-1, 2)
        places = functional.pad(places, (0, 0, 1 + self.sizes.registers, 0))
        found = angles(places, self.sizes.width // self.sizes.heads // 2, THETA).repeat(1, 1, 2)
        return found.cos(), found.sin()


class Geometry(nn.Module):
    """VGGT as far as JanusVLN has it: the aggregator, and two heads that are kept for the file's sake.

    A call is for a whole batch, as training under ZeRO 3 needs it (`Trains.uneven`).
    """

    def __init__(self, sizes: GeometrySizes) -> None:
        super().__init__()
        self.aggregator = Aggregator(sizes)
        self.depth_head = Stored(head_shapes(sizes, out=2))
        self.point_head = Stored(head_shapes(sizes, out=4))

    def forward(self, samples: Sequence[Tensor]) -> list[Tensor]:
        """See `JanusVLN.final_geometries`; the frames are on VGGT's device.

        Samples are seen side by side, one frame of each at a time.
        """
        caches = [FrameCache(recent=None) for _ in samples]
        found: dict[int, Tensor] = {}
        for step in range(max(map(len, samples), default=0)):
            shown = [i for i, frames in enumerate(samples) if step < len(frames)]
            for shape in dict.fromkeys(samples[i].shape[1:] for i in shown):
                alike = [i for i in shown if samples[i].shape[1:] == shape]
                frames = torch.stack([samples[i][step] for i in alike])
                features = geometry_features(self, frames, [caches[i] for i in alike])
                found.update(zip(alike, features, strict=True))  # the last one stays
        return [found[i] for i in range(len(samples))]


def geometry_features(vggt: Geometry, frames: Tensor, caches: Sequence[FrameCache]) -> Tensor:
    """See `JanusVLN.geometry_features`; the frames are on VGGT's device."""
    dtype, device = vggt.aggregator.camera_token.dtype, frames.device.type
    half = dtype != torch.float32 and device != "meta"
    with torch.no_grad(), torch.autocast(device if half else "cpu", dtype if half else None, enabled=half):
        found: Tensor = vggt.aggregator(scaled(frames), caches).to(dtype)
    rows, columns = grid_of(*frames.shape[1:3])
    found = found.reshape(len(frames), -1, columns * MERGE, found.shape[2])[:, : rows * MERGE]
    found = found.reshape(len(frames), rows, MERGE, columns, MERGE, -1).transpose(2, 3)
    return found.reshape(len(frames), rows * columns * MERGE**2, -1)
