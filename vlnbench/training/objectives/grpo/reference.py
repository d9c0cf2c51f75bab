"""The network at the start, from which the trained one is not to stray: a copy, or itself without adapters."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn

from vlnbench.training.objectives.grpo.options import GRPOOptions
from vlnbench.training.setup import Process


class Reference(Protocol):
    """Where the network at the start is to be had."""

    @contextmanager
    def used(self) -> Iterator[Any]:
        """The network, within the block."""
        ...


def make_reference(model: nn.Module, options: GRPOOptions, process: Process) -> Reference | None:
    """The reference that the options ask for, None for none; `model` is still the network at the start."""
    if not options.beta:
        return None
    return FrozenCopy(model, process) if options.keeps_a_copy else WithoutAdapters(model)


class FrozenCopy:
    """A copy of the network on the process's device, whole on each, with any ZeRO stage."""

    def __init__(self, model: nn.Module, process: Process) -> None:
        self._model = copy.deepcopy(model).requires_grad_(False).eval().to(process.device)

    @contextmanager
    def used(self) -> Iterator[Any]:
        yield self._model


class WithoutAdapters:
    """The trained network while its adapters do nothing, where nothing but adapters trains."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._layers: list[Any] = [module for module in model.modules() if hasattr(module, "base_layer")]

    @contextmanager
    def used(self) -> Iterator[Any]:
        self._set(disabled=True)
        try:
            yield self._model
        finally:
            self._set(disabled=False)

    def _set(self, disabled: bool) -> None:
        for layer in self._layers:  # peft's own method would also freeze them, in the middle of a step
            layer._disable_adapters = disabled
