"""Passes of a few tokens as CUDA graphs: one launch in the place of a thousand.

A graph repeats what was launched when it was captured, on the same memory. So a pass has one of a few shapes, keys
and values lie in one room that stays, and what differs from pass to pass comes in one vector: tokens, positions,
the column where new entries go, and which entries there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from agents.common.decoders.cache import CacheColumns
from agents.common.upload import upload
from vlnbench.errors import UsageError

MOST = 96
"""Graphs that are kept; then all are let go."""


class _Captured(NamedTuple):
    graph: Any
    given: Tensor
    scores: Tensor


Pass = Callable[[Tensor, Tensor, CacheColumns], Tensor]
"""Scores, float32 (rows, width, vocabulary), of ids and positions (rows, width)."""


class Graphs:
    """Replays passes of a network, each of which feeds up to `tokens` tokens of every row.

    attention: its kind. tokens: the lengths that there are, ascending. run: a pass, of values on the GPU alone.
    One of another shape is captured first, which takes longer; rows are powers of two, or all that there are.
    Raises UsageError without a GPU, and for attention whose kernels ask the host.
    """

    def __init__(self, device: torch.device, attention: str, tokens: Sequence[int], run: Pass) -> None:
        if device.type != "cuda":
            raise UsageError("--cuda-graphs cannot be used here: they need a CUDA device")
        if attention != "sdpa":
            raise UsageError(f"--cuda-graphs cannot be used here: they need --attn sdpa, not {attention}")
        self._run, self._tokens = run, tuple(tokens)
        self._room: Tensor | None = None
        self._known: dict[tuple[int, ...], _Captured] = {}
        self._pool: Any = None

    def zeros(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Zeros of a shape, in the memory that graphs read and write: what was there before is gone."""
        size = torch.Size(shape).numel()
        if self._room is None or self._room.numel() < size:
            self._known.clear()
            self._room = None  # before there is another
            self._room = like.new_zeros(size)
        return self._room[:size].view(*shape).zero_()

    def width(self, longest: int) -> int:
        """Tokens of a pass in which rows feed up to `longest`."""
        return next(count for count in self._tokens if count >= longest)

    def __call__(
        self, buffer: Tensor, begin: int, valid: Tensor, fed: Sequence[Tensor], lengths: Sequence[int]
    ) -> Tensor:
        """Scores float32 (rows, width, vocabulary) after every token that is fed.

        buffer: of `zeros`, (layers, 2, seats, kv heads, columns, head dim), to be filled from column `begin` on.
        valid: bool (seats, columns) on the host, new entries included. fed: ids of every row, which have the first
        seats. lengths: the position of the first of it.
        """
        width, rows = self.width(max(map(len, fed))), min(1 << (len(fed) - 1).bit_length(), buffer.shape[2])
        empty = [torch.zeros(width, dtype=torch.long)] * (rows - len(fed))
        seen = valid[:rows].clone()
        seen[len(fed) :, begin] = True  # without a key there are no numbers
        ids = pad_sequence([*fed, *empty, torch.zeros(width, dtype=torch.long)], batch_first=True)[:-1]
        positions = torch.tensor([*lengths, *[0] * len(empty)])[:, None] + torch.arange(width)
        parts = (ids, positions, torch.tensor([begin]), seen)
        given = torch.cat([part.flatten().to(torch.int32) for part in parts])
        key = (rows, width, buffer.shape[2], buffer.shape[-2])
        if key not in self._known:
            if len(self._known) == MOST:
                self._known.clear()
            place = upload(given, buffer.device)
            self._known[key] = self._capture(buffer[:, :, :rows], place, width)
        known = self._known[key]
        known.given.copy_(given.pin_memory(), non_blocking=True)
        known.graph.replay()
        return known.scores[: len(fed)]

    def _capture(self, buffer: Tensor, given: Tensor, width: int) -> _Captured:
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):  # libraries take their memory at the first call
            self._pass(buffer, given, width)
        torch.cuda.current_stream().wait_stream(beside)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            scores = self._pass(buffer, given, width)
        return _Captured(graph, given, scores)

    def _pass(self, buffer: Tensor, given: Tensor, width: int) -> Tensor:
        rows, columns = buffer.shape[2], buffer.shape[-2]
        parts = torch.split(given, [rows * width, rows * width, 1, rows * columns])
        ids, positions = (part.view(rows, width).long() for part in parts[:2])
        places = parts[2].long() + torch.arange(width, device=given.device)
        valid = parts[3].view(rows, 1, 1, columns).bool()
        seen = torch.arange(columns, device=given.device) <= places[:, None]
        return self._run(ids, positions, CacheColumns(buffer, places, valid & seen))
