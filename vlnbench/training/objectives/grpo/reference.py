"""The network at the start, from which the trained one is not to stray: a copy, or itself without adapters."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn

from vlnbench.training.objectives.grpo.options import GRPOOptions
from vlnbench.training.parts import is_adapter
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
    return FrozenCopy(model, process) if options.keeps_a_copy else WithoutAdapters(model, process)


class FrozenCopy:
    """A copy of the network on the process's device, whole on each, with any ZeRO stage."""

    def __init__(self, model: nn.Module, process: Process) -> None:
        self._model = copy.deepcopy(model).requires_grad_(False).eval().to(process.device)

    @contextmanager
    def used(self) -> Iterator[Any]:
        yield self._model


class WithoutAdapters:
    """The trained network while its adapters do nothing and the little else that trains is as it was."""

    def __init__(self, model: nn.Module, process: Process) -> None:
        self._model = model
        named = model.named_parameters()
        others = [each for name, each in named if each.requires_grad and not is_adapter(name)]
        self._before = [(each, each.detach().to(process.device, copy=True)) for each in others]
        self._layers: list[Any] = [module for module in model.modules() if hasattr(module, "base_layer")]

    @contextmanager
    def used(self) -> Iterator[Any]:
        now = [each.data for each, _ in self._before]
        try:
            self._set(disabled=True)
            for each, before in self._before:
                each.data = before
            yield self._model
        finally:
            for (each, _), trained in zip(self._before, now, strict=True):
                each.data = trained
            self._set(disabled=False)

    def _set(self, disabled: bool) -> None:
        for layer in self._layers:  # peft's own method would also freeze them, in the middle of a step
            layer._disable_adapters = disabled
