"""Counts the bytes of live tensors while a network runs: on the CPU for real, on the meta device in shapes only.

On the meta device floating-point tensors are shapes without memory, while integer and boolean ones (token ids,
labels, masks) stay real on the CPU, so that what depends on their values runs as it would: the number of
supervised positions, for instance.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

BLOCK = 512
"""PyTorch's CUDA allocator hands out multiples of this many bytes."""

_aten = torch.ops.aten
_INDEXING = (
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten._unsafe_index_put.default,
)
_COMPARING = (_aten.eq.Scalar, _aten.ne.Scalar)
"""What has no value equals no number: a frame in shapes is none of the empty ones that networks leave out."""


class LiveMemory(TorchDispatchMode):
    """While it is entered: bytes of the storages that operations made and that are still alive.

    `live` and `peak` are bytes, each storage rounded up to a multiple of `BLOCK`. Tensors from before (parameters,
    inputs) and views of them do not count. `wide_live` and `wide_at_peak` count the tensors whose last dimension
    is `width` (logits, where it is the vocabulary). Meta tensors count unless `shapes` is off. `events`: what was
    made and let go of, in order: the bytes of a storage, or minus the number of the one that went, from 1 on.
    """

    def __init__(self, width: int | None = None, *, shapes: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shapes = shapes
        self._width = width
        self._known: dict[int, weakref.ref[Any]] = {}
        self._results: dict[Any, list[tuple[Any, ...]]] = {}
        self.live = self.peak = self.wide_live = self.wide_at_peak = 0
        self.events = array("q")
        self._made = 0

    def restart_peak(self) -> None:
        """Count the peak from what is alive now."""
        self.peak, self.wide_at_peak = self.live, self.wide_live

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        for tensor in inputs:
            self._add(tensor, counted=False)
        result = self._run(func, args, kwargs, inputs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf, counted=self._shapes or not leaf.is_meta)
        return result

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Tensor]) -> Any:
        """The operation itself; on shapes alone, from what it gave for the same shapes before.

        That spares a pass most of its time: the meta device works out shapes in Python, and blocks are alike.
        """
        if func in _COMPARING and inputs[0].is_meta:
            return torch.full(inputs[0].shape, func is _aten.ne.Scalar)
        if func is _aten._to_copy.default and inputs[0].is_meta and "device" in kwargs:
            kwargs = kwargs | {"device": inputs[0].device}  # to where token ids are, say: all are on one GPU
        if not inputs or not all(tensor.is_meta for tensor in inputs) or not _makes_new(func):
            return _run(func, args, kwargs, inputs)
        leaves = tree_leaves((args, kwargs))
        key = (func, len(args), *kwargs, *(_described(leaf) for leaf in leaves))
        if key not in self._results:
            result = func(*args, **kwargs)
            made = result if isinstance(result, tuple) else (result,)
            if not all(isinstance(tensor, Tensor) for tensor in made):
                return result
            self._results[key] = [(isinstance(result, tuple), *_described(tensor)) for tensor in made]
            return result
        new = tuple(
            torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            for _, shape, stride, dtype in self._results[key]
        )
        return new if self._results[key][0][0] else new[0]

    def _add(self, tensor: Tensor, counted: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = -(-storage.nbytes() // BLOCK) * BLOCK if counted else 0
        wide = size if tensor.dim() > 1 and tensor.shape[-1] == self._width else 0
        if size:
            self._made += 1
            self.events.append(size)
        number = self._made

        def gone(_: object) -> None:
            del self._known[key]
            self.live -= size
            self.wide_live -= wide
            if size:
                self.events.append(-number)

        self._known[key] = weakref.ref(storage, gone)
        self.live += size
        self.wide_live += wide
        if self.live > self.peak:
            self.peak, self.wide_at_peak = self.live, self.wide_live


@cache
def _makes_new(func: Any) -> bool:
    """Whether an operation returns new tensors only and changes none."""
    schema = func._schema
    return not any(value.alias_info for value in (*schema.arguments, *schema.returns))


def _described(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, Tensor):
        return (leaf.shape, leaf.stride(), leaf.dtype)
    return (type(leaf), leaf)


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Tensor]) -> Any:
    """The operation itself, with the values of integers and booleans kept where shapes alone would lose them."""
    meta = [tensor.is_meta for tensor in inputs]
    if not any(meta):
        result = func(*args, **kwargs)
        to_meta = str(kwargs.get("device")) == "meta"
        if to_meta and isinstance(result, Tensor) and not result.is_floating_point():
            return func(*args, **(kwargs | {"device": torch.device("cpu")}))
        return result
    if all(meta):
        return func(*args, **kwargs)
    if func is _aten.masked_select.default:
        source, mask = args
        return source.new_empty(int(mask.expand(source.shape).sum()))
    if func in _INDEXING:
        args = (args[0], [part for index in args[1] for part in _positions(index)], *args[2:])
    return func(*tree_map_only(Tensor, _shape_only, args), **tree_map_only(Tensor, _shape_only, kwargs))


def _positions(index: Tensor | None) -> tuple[Tensor | None, ...]:
    """Integer indices in the place of a real mask."""
    if index is not None and index.dtype == torch.bool and not index.is_meta:
        return index.nonzero(as_tuple=True)
    return (index,)


def _shape_only(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_meta else torch.empty_like(tensor, device="meta")


@contextmanager
def fused_kernels() -> Iterator[None]:
    """Attention and dropout on the meta device as CUDA's kernels allocate them.

    Without it the meta device takes the mathematical path of attention, whose matrices no GPU would hold, and a
    mask of dropout in the type of its input. Replaces the functions themselves, because a function mode is off in
    what a backward pass computes again.
    """
    original, dropped = functional.scaled_dot_product_attention, functional.dropout

    def attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if query.is_meta:
            result: Tensor = _Attention.apply(query, key, value)  # type: ignore[no-untyped-call]
            return result
        return original(query, key, value, *args, **kwargs)

    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if input.is_meta and training and p and not inplace:
            result: Tensor = _Dropout.apply(input)  # type: ignore[no-untyped-call]
            return result
        return dropped(input, p, training, inplace)

    functional.scaled_dot_product_attention, functional.dropout = attention, dropout
    try:
        yield
    finally:
        functional.scaled_dot_product_attention, functional.dropout = original, dropped


class _Dropout(torch.autograd.Function):
    """Keeps a mask of one byte per value, as the kernel for CUDA does."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(torch.empty_like(values, dtype=torch.float8_e5m2))  # integers would be made for real
        return torch.empty_like(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.empty_like(gradient)


class _Attention(torch.autograd.Function):
    """Query (B, H, L, D), key and value (B, H or fewer, L, D): what the flash kernels of PyTorch keep and need.

    Kept for the backward pass: the three inputs, the output and one float32 per query and head. The backward pass
    accumulates the query's gradient in float32, and with grouped heads key and value gradients at full width.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = torch.empty_like(query)
        rows = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, rows)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, _, rows = ctx.saved_tensors
        _sums = torch.empty_like(rows)
        _accumulated = query.new_empty(query.shape, dtype=torch.float32)
        if key.shape[1] != query.shape[1]:
            _wide = torch.empty_like(query), torch.empty_like(query)
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
