"""The key-value caches of requests that are answered together, side by side in one buffer that grows in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from agents.common.upload import upload

SPARE = 64  # columns a buffer grows by, beyond what is asked for
STEP, GPU_STEP = 256, 1024
"""Columns come in multiples of it, so that what is freed fits what is asked for later: on a GPU in few sizes, for
its allocator keeps what does not fit; on a CPU zeros take time."""


class CacheSizes(Protocol):
    """Sizes of a language model that its keys and values have."""

    @property
    def num_hidden_layers(self) -> int: ...

    @property
    def num_key_value_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...


Room = Callable[[Sequence[int], Tensor], Tensor]
"""Makes zeros of a shape, on the device of a tensor, where what was made before may have been."""


@dataclass(frozen=True)
class CacheView:
    """Rows of a buffer whose columns from `length` on are for new keys and values. seen: bool (rows, 1, queries,
    columns), for attention that takes it from here."""

    buffer: Tensor
    length: int
    seen: Tensor | None = None

    def entries(self, count: int) -> Tensor:
        """All up to the `count` columns that a pass fills: (layers, 2, rows, kv heads, columns, head dim)."""
        return self.buffer[..., : self.length + count, :]

    def put(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add a layer's keys and values (rows, kv heads, new, head dim) and return all that there are.

        Writing in place spares the copy of the whole cache per layer and token that appending costs.
        """
        both = self.entries(keys.shape[-2])[layer]
        both[0, ..., self.length :, :] = keys
        both[1, ..., self.length :, :] = values
        return both[0], both[1]


@dataclass(frozen=True)
class CacheColumns:
    """Rows of a whole buffer, of which new entries fill columns that only the GPU knows, `places` (queries,).
    seen: bool (rows, 1, queries, columns)."""

    buffer: Tensor
    places: Tensor
    seen: Tensor

    def put(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """As `CacheView.put`; returns all columns."""
        both = self.buffer[layer]
        both[0].index_copy_(-2, self.places, keys)
        both[1].index_copy_(-2, self.places, values)
        return both[0], both[1]


class TurnCache:
    """One `buffer` (layers, 2, rows, kv heads, columns, head dim); `valid`, the host's mask (rows, columns).

    A row's valid entries lie in the order of their positions, with holes where other rows wrote more. What a pass
    feeds is padded on the right, so that no query is ever without a key.
    """

    def __init__(
        self, config: CacheSizes, rows: int, longest: int, like: Tensor, room: Room | None = None
    ) -> None:
        """Of empty rows. longest: entries that one of them is sure to have. room: where the buffer lies, if not
        anywhere."""
        self._room = room
        # The column behind a row's last valid one.
        self._ends = [0] * rows
        columns = turn_columns(longest, like.device)
        shape = (config.num_hidden_layers, 2, rows, config.num_key_value_heads, columns, config.head_dim)
        # Zeros: what is masked still meets a weight of 0, and 0 * NaN is NaN.
        self.buffer = room(shape, like) if room else like.new_zeros(shape)
        self.valid = torch.zeros(rows, columns, dtype=torch.bool)

    def seat(self, row: int, past: Tensor | None) -> None:
        """Have a row begin with a copy of `past` (layers, 2, kv heads, length, head dim), or with nothing."""
        self._ends[row] = end = 0 if past is None else past.shape[-2]
        self.valid[row] = torch.arange(self.valid.shape[1]) < end
        if past is not None:
            self.buffer[:, :, row, :, :end] = past

    def move(self, row: int, to: int) -> None:
        """Have a row's entries lie where those of another were."""
        self._ends[to] = end = self._ends[row]
        self.valid[to] = self.valid[row]
        self.buffer[:, :, to, :, :end] = self.buffer[:, :, row, :, :end]

    def open(self, rows: range, counts: Sequence[int]) -> tuple[CacheView, Tensor | None]:
        """Room for `counts` new entries in neighboring `rows`: the cache and the attention mask of one pass."""
        begin = self.place(rows, counts, max(counts))
        mask = self.valid[rows.start : rows.stop, : begin + max(counts)]
        view = CacheView(self.buffer[:, :, rows.start : rows.stop], begin)
        return view, None if mask.all() else upload(mask, self.buffer.device)

    def place(self, rows: range, counts: Sequence[int], width: int) -> int:
        """The first of `width` columns of which rows take so many as `counts` say."""
        begin = max(self._ends[i] for i in rows)
        if begin + width > self.valid.shape[1]:
            more = stepped(begin + width + SPARE, self.buffer.device) - self.valid.shape[1]
            self._grow(more)
            self.valid = pad(self.valid, (0, more))
        for i, count in zip(rows, counts, strict=True):
            self._ends[i] = begin + count
            self.valid[i, begin : self._ends[i]] = True
        return begin

    def _grow(self, more: int) -> None:
        if self._room is None:
            self.buffer = pad(self.buffer, (0, 0, 0, more))
            return
        before = self.buffer.clone()
        *outer, columns, size = before.shape
        self.buffer = self._room((*outer, columns + more, size), before)
        self.buffer[..., :columns, :] = before

    def discard(self, row: int, count: int) -> None:
        """Take back a row's last entries, all of them from its last pass."""
        self.valid[row, self._ends[row] - count : self._ends[row]] = False
        self._ends[row] -= count

    def row(self, row: int) -> Tensor:
        """A copy of a row's valid entries: (layers, 2, kv heads, length, head dim)."""
        valid = self.valid[row].nonzero()[:, 0]
        layers, both, _, heads, _, size = self.buffer.shape
        columns = stepped(len(valid), self.buffer.device)
        kept = self.buffer.new_empty(layers, both, heads, columns, size)[..., : len(valid), :]
        return torch.index_select(self.buffer[:, :, row], -2, upload(valid, kept.device), out=kept)

    def past(self, row: int, count: int) -> Tensor:
        """A copy of a row's first entries in the host's memory, layer by layer: the GPU may have no room left."""
        return torch.stack([layer[:, row, :, :count].cpu() for layer in self.buffer])


def stepped(columns: int, device: torch.device) -> int:
    """So many columns, or a few more."""
    step = STEP if device.type == "cpu" else GPU_STEP
    return -(-columns // step) * step


def turn_columns(longest: int, device: torch.device) -> int:
    """Columns of a buffer in which a row has so many entries."""
    return stepped(longest + SPARE, device)
