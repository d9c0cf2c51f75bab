"""A pretended CUDA device with real values: tensors say that they are on cuda:0, arithmetic is the CPU's.

Mixing devices raises as on a GPU, and what would be launched, copied and waited for is counted. Kernels, precision
and speed of a GPU are not pretended.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch._dynamo  # which looks at `torch.cuda` when it is imported
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
ROOT = f"{Path(__file__).parents[2]}/"
OURS = (f"{ROOT}agents/", f"{ROOT}vlnbench/")

COPIES = {aten._to_copy.default, aten.to.device, aten._copy_from.default, aten.copy.default}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
WAITS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
    aten.repeat_interleave.Tensor,
}
"""The host waits for the GPU to know a value or a shape."""
MIXED = {aten.set_.source_Storage, aten._pack_padded_sequence.default, aten._pad_packed_sequence.default}


def _fill_in_guard() -> None:
    """A CPU build lacks the device guard that indexing asks for: meta's, which does nothing, stands in for it."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    registry = (ctypes.c_void_p * 22).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    registry[1] = registry[1] or registry[14]


class OnGpu(Tensor):
    """Says that it is on cuda:0 and holds a tensor of the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnGpu:
        made: OnGpu = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=CUDA,
            requires_grad=False,
        )
        return made

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnGpu({self.held.detach()!r})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with _DEVICE:
            return func(*args, **(kwargs or {}))


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _where() -> str:
    """The line of ours that is at work."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(ROOT)}:{frame.f_lineno}" if frame else "?"


class Device(TorchDispatchMode):
    """Counts by the lines that caused it: `launches` by operation, `waits`, copies `up` to the GPU and `down`, and
    `blocking`, those of them that the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.launches, self.waits = Counter[str](), Counter[str]()
        self.up, self.down = Counter[str](), Counter[str]()
        self.blocking = Counter[str]()
        self.recorded: list[tuple[Any, ...]] | None = None
        """What is launched while a graph is captured."""

    def reset(self) -> None:
        for each in (self.launches, self.waits, self.up, self.down, self.blocking):
            each.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if _is_composite(func):
            with self:
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        flat = [*_leaves(args), *_leaves(kwargs)]
        there = [each for each in flat if isinstance(each, OnGpu)]
        here = [each for each in flat if isinstance(each, Tensor) and not isinstance(each, OnGpu)]
        wanted = next((each for each in reversed(flat) if isinstance(each, torch.device)), None)
        to_gpu = self._copied(func, args, kwargs, wanted)
        if to_gpu is None:
            to_gpu = _is_cuda(wanted) if wanted is not None else bool(there)
            if there:
                self._computed(func, args, here)
        out = func(*_mapped(_held, args), **_on_cpu(_mapped(_held, kwargs)))
        known = {id(each.held): each for each in there} | {id(each): each for each in here}

        def wrapped(each: Any) -> Any:
            if not isinstance(each, Tensor) or isinstance(each, OnGpu):
                return each
            return known.get(id(each), OnGpu(each) if to_gpu else each)

        if func is aten._pack_padded_sequence.default:
            return wrapped(out[0]), out[1]
        made = _mapped(wrapped, out)
        if self.recorded is not None:
            self.recorded.append((func, args, kwargs, made))
        return made

    def replay(self, recorded: Sequence[tuple[Any, ...]]) -> None:
        """Do again what was launched, with the same arguments, in the same memory: one launch."""
        self.launches["graph"] += 1
        for func, args, kwargs, made in recorded:
            again = func(*_mapped(_held, args), **_on_cpu(_mapped(_held, kwargs)))
            for before, now in zip(_leaves(made), _leaves(again), strict=True):
                if isinstance(before, OnGpu) and before.held.data_ptr() != now.data_ptr():
                    before.held.copy_(now)

    def _copied(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], wanted: torch.device | None
    ) -> bool | None:
        """Where a copy goes, counted if it is from one device to the other; None for what is no copy."""
        if func is aten.copy_.default:
            target, source = isinstance(args[0], OnGpu), args[1]
        elif func in COPIES:
            source = args[0]
            target = _is_cuda(wanted) if wanted is not None else isinstance(source, OnGpu)
        else:
            return None
        if source.device.type != "meta" and target != isinstance(source, OnGpu):
            (self.up if target else self.down)[_where()] += 1
            at_once = kwargs.get("non_blocking") or (func is aten.copy_.default and args[2:3] == (True,))
            if self.recorded is not None:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.blocking[_where()] += not (at_once and (not target or hasattr(source, "pinned")))
        return target

    def _computed(self, func: Any, args: Sequence[Any], here: Sequence[Tensor]) -> None:
        mixed = [each for each in here if each.dim() > 0]
        if func in INDEXING:  # places may be the host's, which copies them
            self.up[_where()] += bool(mixed)
            self.blocking[_where()] += bool(mixed)
            mixed = [each for each in mixed if each is args[0] or (len(args) > 2 and each is args[2])]
        elif func in MIXED:
            mixed = []
        if mixed:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"{func} at {_where()}"
            )
        self.launches[str(func)] += not func.is_view
        by_mask = func in INDEXING and any(
            isinstance(each, Tensor) and each.dtype is torch.bool for each in args[1]
        )
        if func in WAITS or by_mask:
            self.waits[_where()] += 1
            if self.recorded is not None:
                raise RuntimeError("operation not permitted when stream is capturing")


@cache
def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """As `torch.utils._pytree.tree_map`, which takes half of the time here."""
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(function, each) for each in value])
    if isinstance(value, dict):
        return {key: _mapped(function, each) for key, each in value.items()}
    return function(value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
    else:
        yield value


def _held(value: Any) -> Any:
    if isinstance(value, OnGpu):
        return value.held
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


def _on_cpu(named: dict[str, Any]) -> dict[str, Any]:
    if named.get("pin_memory"):
        named["pin_memory"] = False
    return named


_DEVICE = Device()


class _Graph:
    """As `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.recorded: list[tuple[Any, ...]] = []

    def replay(self) -> None:
        _DEVICE.replay(self.recorded)


@contextlib.contextmanager
def _captured(graph: _Graph, pool: Any = None) -> Iterator[None]:
    """As `torch.cuda.graph`: nothing may be waited for in it."""
    _DEVICE.recorded = graph.recorded
    try:
        yield
    finally:
        _DEVICE.recorded = None


class _Stream:
    def wait_stream(self, other: _Stream) -> None:
        """There is no other."""


class _Named(TorchFunctionMode):
    """`cuda` without a number is `cuda:0`, and what a CPU build cannot do from Python is done by other means."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        named = {key: _numbered(value) if key == "device" else value for key, value in (kwargs or {}).items()}
        on_gpu = bool(args) and isinstance(args[0], OnGpu)
        if name == "to":
            args = tuple(map(_numbered, args))
        elif name == "cuda":
            return args[0].to(CUDA)
        elif name == "tolist" and on_gpu:
            return args[0].cpu().tolist()
        elif name in ("numpy", "__array__") and on_gpu:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        elif name in ("tensor", "as_tensor", "asarray") and _is_cuda(named.get("device")):
            del named["device"]
            return func(*args, **named).to(CUDA)
        elif name == "pin_memory":
            pinned = args[0].clone()
            pinned.pinned = True
            return pinned
        elif name in ("lstm", "gru"):
            return _recurrent(func, args)
        return func(*args, **named)


def _recurrent(func: Any, args: Any) -> Any:
    """What cuDNN computes as a whole, on values that must all be on one device; sizes of packed batches are the
    host's."""
    tensors = [each for each in _leaves(args) if isinstance(each, Tensor) and each.is_floating_point()]
    if len({each.device for each in tensors}) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, found cuda:0 and cpu! {_where()}")
    found = func(*_mapped(_held, args))
    return _mapped(OnGpu, found) if isinstance(tensors[0], OnGpu) else found


def _numbered(device: Any) -> Any:
    named = isinstance(device, str) and device == "cuda"
    return CUDA if named or (isinstance(device, torch.device) and str(device) == "cuda") else device


def _answers(memory: int) -> Mapping[str, Any]:
    """What `torch.cuda` says of the card."""
    card = SimpleNamespace(name="Pretended", total_memory=memory, major=9, minor=0, uuid="0")
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_name": lambda *_: card.name,
        "get_device_properties": lambda *_: card,
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "memory_stats": lambda *_: {},
        "max_memory_allocated": lambda *_: 0,
        "max_memory_reserved": lambda *_: 0,
        **dict.fromkeys(
            (
                "_lazy_init",
                "empty_cache",
                "manual_seed_all",
                "reset_peak_memory_stats",
                "set_device",
                "set_rng_state",
                "synchronize",
            ),
            lambda *_: None,
        ),
    }


@contextlib.contextmanager
def pretended(memory: int = 80 * 2**30) -> Iterator[Device]:
    """A machine with a GPU, as far as tensors of this thread know.

    Skips the test where torch is a CUDA build, whose guard asks a driver and ends the process where there is none.
    """
    if torch.backends.cuda.is_built():
        pytest.skip("needs a CPU build of torch")
    _fill_in_guard()
    _DEVICE.reset()
    with contextlib.ExitStack() as stack:
        own = {"CUDAGraph": _Graph, "graph": _captured, "Stream": _Stream, "current_stream": _Stream}
        own |= {"stream": contextlib.nullcontext, "graph_pool_handle": lambda: None}
        for name, answer in {**_answers(memory), **own}.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(patch.object(torch.backends.cudnn, "is_acceptable", lambda _: False))
        # Tensors of inference mode cannot be wrapped everywhere; without gradients they are the same.
        stack.enter_context(patch.object(torch._C, "_InferenceMode", lambda _: torch.no_grad()))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, False)
        stack.enter_context(_Named())
        stack.enter_context(_DEVICE)
        yield _DEVICE
