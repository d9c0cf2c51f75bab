"""The key-value caches of one chunk of turns, side by side in one buffer that grows in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from agents.common.decoders.sizes import WindowedSizes

SPARE = 64  # columns a buffer grows by, beyond what is asked for
STEP = 256  # columns come in multiples of it, so that what is freed fits what is asked for later


@dataclass(frozen=True)
class CacheView:
    """Rows of a buffer whose columns from `length` on are for new keys and values."""

    buffer: Tensor
    length: int

    def entries(self, count: int) -> Tensor:
        """All up to the `count` columns that a pass fills: (layers, 2, rows, kv heads, columns, head dim)."""
        return self.buffer[..., : self.length + count, :]


class TurnCache:
    """One buffer (layers, 2, rows, kv heads, columns, head dim) with a mask (rows, columns) of valid entries.

    A row's valid entries lie in the order of their positions, with holes where other rows wrote more. What a pass
    feeds is padded on the right, so that no query is ever without a key.
    """

    def __init__(
        self, config: WindowedSizes, pasts: Sequence[Tensor | None], like: Tensor, coming: int = 0
    ) -> None:
        """Rows begin with a copy of `pasts`, each (layers, 2, kv heads, length, head dim). coming: entries
        that are sure to follow."""
        # The column behind a row's last valid one.
        self._ends = [0 if past is None else past.shape[-2] for past in pasts]
        columns = stepped(max(self._ends) + coming + SPARE)
        shape = (config.num_hidden_layers, 2, len(pasts), config.num_key_value_heads, columns, config.head_dim)
        self._buffer = like.new_zeros(shape)  # zeros: what is masked still meets a weight of 0, and 0 * NaN is NaN
        self._mask = torch.zeros(len(pasts), columns, dtype=torch.bool)
        for i, past in enumerate(pasts):
            if past is not None:
                self._buffer[:, :, i, :, : self._ends[i]] = past
                self._mask[i, : self._ends[i]] = True

    def open(self, rows: range, counts: Sequence[int]) -> tuple[CacheView, Tensor | None]:
        """Room for `counts` new entries in neighboring `rows`: the cache and the attention mask of one pass."""
        begin = max(self._ends[i] for i in rows)
        end = begin + max(counts)
        if end > self._mask.shape[1]:
            more = stepped(end + SPARE) - self._mask.shape[1]
            self._buffer = pad(self._buffer, (0, 0, 0, more))
            self._mask = pad(self._mask, (0, more))
        for i, count in zip(rows, counts, strict=True):
            self._ends[i] = begin + count
            self._mask[i, begin : self._ends[i]] = True
        mask = self._mask[rows.start : rows.stop, :end]
        view = CacheView(self._buffer[:, :, rows.start : rows.stop], begin)
        return view, None if mask.all() else mask.to(self._buffer.device)

    def discard(self, row: int, count: int) -> None:
        """Take back a row's last entries, all of them from its last pass."""
        self._mask[row, self._ends[row] - count : self._ends[row]] = False
        self._ends[row] -= count

    def row(self, row: int) -> Tensor:
        """A copy of a row's valid entries: (layers, 2, kv heads, length, head dim)."""
        valid = self._mask[row].nonzero()[:, 0].to(self._buffer.device)
        layers, both, _, heads, _, size = self._buffer.shape
        kept = self._buffer.new_empty(layers, both, heads, stepped(len(valid)), size)[..., : len(valid), :]
        return torch.index_select(self._buffer[:, :, row], -2, valid, out=kept)

    def past(self, row: int, count: int) -> Tensor:
        """A copy of a row's first entries in the host's memory, layer by layer: the GPU may have no room left."""
        return torch.stack([layer[:, row, :, :count].cpu() for layer in self._buffer])


def stepped(columns: int) -> int:
    """So many columns, or a few more."""
    return -(-columns // STEP) * STEP
