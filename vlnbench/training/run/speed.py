"""How fast a training computes, and how long its processes wait for each other."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vlnbench.training.setup import Process
from vlnbench.training.watch import wrap_collectives
from vlnbench.util.cards import peak


class Speed:
    """What a process computes per second and how long it waits for others; a context manager.

    To be entered before DeepSpeed is started. Operations are counted on a GPU only, and not in compiled networks,
    which hooks would take apart; on a CPU small networks are computed without the modules that are counted.
    """

    def __init__(self, process: Process) -> None:
        self._device = process.device
        self._communication = Communication(process.device) if process.world_size > 1 else None
        self._operations: Operations | None = None

    def __enter__(self) -> Speed:
        if self._communication is not None:
            self._communication.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._communication is not None:
            self._communication.__exit__()

    def count(self, model: nn.Module) -> None:
        """Count what a network computes from now on."""
        if self._device.type == "cuda":
            self._operations = Operations(model)

    def take(self, seconds: float) -> dict[str, Any]:
        """What to write to the log of so many seconds, since the last call.

        communication: seconds in calls to other processes, with several; they are also in the seconds by phase.
        tflops: 1e12 operations per second of this GPU; card_share: of what its card computes at most, None where
        that is not known.
        """
        found: dict[str, Any] = {}
        if self._communication is not None:
            found["communication"] = round(self._communication.take(), 4)
        if self._operations is not None:
            tflops = self._operations.take() / seconds / 1e12
            highest = peak(torch.cuda.get_device_name(self._device))
            share = None if highest is None else round(tflops / highest, 4)
            found |= {"tflops": round(tflops, 2), "card_share": share}
        return found


class Operations:
    """Counts what the linear layers of a network compute, forward and backward, by what goes through them.

    A multiplication and an addition are two. What is computed again for the backward pass counts again, as it
    takes time again. Products of attention, convolutions, norms and the optimizer are left out.
    """

    def __init__(self, model: nn.Module) -> None:
        self._taken = 0.0
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(self._forward)

    def _forward(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Linear)
        size = 2.0 * (inputs[0].numel() // module.in_features) * module.in_features * module.out_features
        self._taken += size
        gradients = int(inputs[0].requires_grad) + int(module.weight.requires_grad)
        if output.requires_grad and gradients:
            # once, however often it is computed
            output.register_hook(partial(self._backward, size * gradients))  # type: ignore[no-untyped-call]

    def _backward(self, size: float, _: Tensor) -> None:
        self._taken += size

    def take(self) -> float:
        """Operations since the last call."""
        taken, self._taken = self._taken, 0.0
        return taken


class Communication:
    """Seconds in which this process does nothing but talk with the others or wait for them; a context manager.

    On a GPU it is what the stream of the call waits, so that what goes on beside computation is not counted, but
    for calls that DeepSpeed makes on a stream of their own (overlap_comm).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._pending: list[tuple[Any, Any]] = []
        self._restore: list[Callable[[], None]] = []

    def __enter__(self) -> Communication:
        self._restore = wrap_collectives(self._timing)
        return self

    def __exit__(self, *_: object) -> None:
        for restore in self._restore:
            restore()

    def take(self) -> float:
        """Seconds since the last call; waits for the device."""
        if self._pending:
            torch.cuda.synchronize(self._device)
            self._seconds += sum(start.elapsed_time(end) for start, end in self._pending) / 1000
            self._pending.clear()
        taken, self._seconds = self._seconds, 0.0
        return taken

    def _timing(self, _: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            made = self.timed(original, *arguments, **named)
            return _Waited(made, self) if named.get("async_op") and made is not None else made

        return timed

    def timed(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call it and add how long that takes."""
        if self._device.type != "cuda":
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self._seconds += time.perf_counter() - began
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        made = call(*arguments, **named)
        end.record()
        self._pending.append((start, end))
        return made


class _Waited:
    """A call that goes on by itself, of which the waiting is timed."""

    def __init__(self, work: Any, communication: Communication) -> None:
        self._work, self._communication = work, communication

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def wait(self, *arguments: Any, **named: Any) -> Any:
        """As the call's own."""
        return self._communication.timed(self._work.wait, *arguments, **named)
